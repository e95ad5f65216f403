"""Scripts that train, reproduce and export; run from a checkout."""
