/* Runs a trained net from C, without Python.
 *
 *     serve FOLDER INPUT OUTPUT HEIGHT WIDTH CHANNELS < images
 *
 * Reads images as float32 values in the machine's byte order, all rows of the first,
 * then the second, …, and prints a line for each, with a number for each class. INPUT
 * and OUTPUT are names of tensors as
 *
 *     saved_model_cli show --dir FOLDER --tag_set serve --signature_def serving_default
 *
 * prints them, such as serving_default_image:0. Exit code 2 is wrong usage, 1 an error.
 *
 * Build with TensorFlow's C library, or with the libraries of its Python package:
 *
 *     place=$(python -c 'import tensorflow as tf; print(tf.sysconfig.get_lib())')
 *     cc -O2 -o serve recipes/serve.c -I"$place/include" -L"$place" \
 *         -Wl,-rpath,"$place" -l:libtensorflow_cc.so.2 -l:libtensorflow_framework.so.2
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"

static void check(int good, const char *message) {
  if (good) return;
  fprintf(stderr, "error: %s\n", message);
  exit(1);
}

/* The output of an operation by the name of its tensor, such as serve_image:0. */
static TF_Output find(TF_Graph *graph, char *name) {
  char *colon = strrchr(name, ':');
  check(colon != NULL, "names of tensors have the form operation:number");
  *colon = '\0';
  TF_Output output = {TF_GraphOperationByName(graph, name), atoi(colon + 1)};
  check(output.oper != NULL, "the net has no tensor of that name");
  check(output.index >= 0 && output.index < TF_OperationNumOutputs(output.oper),
        "the operation has no output of that number");
  check(TF_OperationOutputType(output) == TF_FLOAT, "the tensor is not of float32");
  return output;
}

/* All values of the standard input. */
static float *read_all(size_t *count) {
  size_t room = 1 << 16, size = 0, got;
  char *bytes = malloc(room);
  check(bytes != NULL, "out of memory");
  while ((got = fread(bytes + size, 1, room - size, stdin)) > 0) {
    size += got;
    if (size == room) {
      bytes = realloc(bytes, room *= 2);
      check(bytes != NULL, "out of memory");
    }
  }
  check(!ferror(stdin), "the images cannot be read");
  check(size % sizeof(float) == 0, "the images are not float32 values");
  *count = size / sizeof(float);
  return (float *)bytes;
}

int main(int argc, char **argv) {
  if (argc != 7) {
    fprintf(stderr, "usage: serve FOLDER INPUT OUTPUT HEIGHT WIDTH CHANNELS\n");
    return 2;
  }
  int64_t shape[4] = {0, atoll(argv[4]), atoll(argv[5]), atoll(argv[6])};
  check(shape[1] > 0 && shape[2] > 0 && shape[3] > 0, "sizes must be above 0");

  TF_Status *status = TF_NewStatus();
  TF_Graph *graph = TF_NewGraph();
  TF_SessionOptions *options = TF_NewSessionOptions();
  const char *tags[] = {"serve"};
  TF_Session *session = TF_LoadSessionFromSavedModel(options, NULL, argv[1], tags, 1,
                                                     graph, NULL, status);
  check(TF_GetCode(status) == TF_OK, TF_Message(status));
  TF_Output input = find(graph, argv[2]), output = find(graph, argv[3]);

  size_t count, image = shape[1] * shape[2] * shape[3];
  float *values = read_all(&count);
  check(count > 0 && count % image == 0, "the input is not a whole number of images");
  shape[0] = count / image;
  size_t bytes = count * sizeof(float);
  TF_Tensor *images = TF_AllocateTensor(TF_FLOAT, shape, 4, bytes);
  check(images != NULL, "out of memory");
  memcpy(TF_TensorData(images), values, bytes);

  TF_Tensor *answers = NULL;
  TF_SessionRun(session, NULL, &input, &images, 1, &output, &answers, 1, NULL, 0, NULL,
                status);
  check(TF_GetCode(status) == TF_OK, TF_Message(status));
  const float *numbers = TF_TensorData(answers);
  size_t classes = TF_TensorElementCount(answers) / shape[0];
  for (int64_t i = 0; i < shape[0]; i++) {
    for (size_t j = 0; j < classes; j++) {
      printf(j ? " %.9g" : "%.9g", numbers[i * classes + j]);
    }
    printf("\n");
  }

  TF_DeleteTensor(answers);
  TF_DeleteTensor(images);
  free(values);
  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  TF_DeleteSessionOptions(options);
  TF_DeleteGraph(graph);
  TF_DeleteStatus(status);
  return 0;
}
