// Drives an MPI (built once with Open MPI's compiler wrapper, once with MPICH's). Flags: see bench.h.
//
// Timed at rank 0, operations back to back. Two exceptions: where rank 0 may return before anyone has the data (broadcast, scatter,
// scans), a barrier stands before each and the time ends when the last rank has returned; send_recv is half a round trip
// between ranks 0 and 1.
#include <mpi.h>
#include <signal.h>
#include <unistd.h>

#include "bench.h"

enum { FINALIZE_SECONDS_MAX = 3 };

static int rank, ranks;
static float *in, *out;  // `in` is the buffer of the in-place operations

typedef struct {
  const char *name;
  void (*run)(size_t count);       // count: elements of the whole vector
  long (*wrong)(size_t count);     // elements of this rank's result that differ from the pattern
  bool ends_at_last_rank;
  int ops_per_run;
} Operation;

static void run_all_reduce(size_t count) {
  MPI_Allreduce(MPI_IN_PLACE, in, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void run_broadcast(size_t count) { MPI_Bcast(in, (int)count, MPI_FLOAT, 0, MPI_COMM_WORLD); }
static void run_all_gather(size_t count) {
  int part = (int)(count / ranks);
  MPI_Allgather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
}
static void run_reduce_scatter(size_t count) {
  MPI_Reduce_scatter_block(in, out, (int)(count / ranks), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void run_reduce(size_t count) {
  MPI_Reduce(in, out, (int)count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
}
static void run_gather(size_t count) {
  int part = (int)(count / ranks);
  MPI_Gather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, 0, MPI_COMM_WORLD);
}
static void run_scatter(size_t count) {
  int part = (int)(count / ranks);
  MPI_Scatter(in, part, MPI_FLOAT, out, part, MPI_FLOAT, 0, MPI_COMM_WORLD);
}
static void run_all_to_all(size_t count) {
  int part = (int)(count / ranks);
  MPI_Alltoall(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
}
static void run_scan(size_t count) { MPI_Scan(in, out, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }
static void run_exscan(size_t count) { MPI_Exscan(in, out, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }
static void run_send_recv(size_t count) {
  if (rank == 0) {
    MPI_Send(in, (int)count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
    MPI_Recv(in, (int)count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  } else if (rank == 1) {
    MPI_Recv(in, (int)count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Send(in, (int)count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
  }
}

static long wrong_all_reduce(size_t count) {
  long wrong = 0;
  for (size_t i = 0; i < count; i++) wrong += in[i] != pattern_sum(ranks, i);
  return wrong;
}
static long wrong_broadcast(size_t count) {
  long wrong = 0;
  for (size_t i = 0; i < count; i++) wrong += in[i] != pattern(0, i);
  return wrong;
}
static long wrong_all_gather(size_t count) {
  long wrong = 0;
  size_t part = count / ranks;
  for (int from = 0; from < ranks; from++)
    for (size_t i = 0; i < part; i++) wrong += out[from * part + i] != pattern(from, i);
  return wrong;
}
static long wrong_reduce_scatter(size_t count) {
  long wrong = 0;
  size_t part = count / ranks;
  for (size_t i = 0; i < part; i++) wrong += out[i] != pattern_sum(ranks, rank * part + i);
  return wrong;
}
static long wrong_first_ranks(size_t count, int summed) {
  long wrong = 0;
  for (size_t i = 0; i < count; i++) wrong += out[i] != pattern_sum(summed, i);
  return wrong;
}
static long wrong_reduce(size_t count) { return rank == 0 ? wrong_first_ranks(count, ranks) : 0; }
static long wrong_scan(size_t count) { return wrong_first_ranks(count, rank + 1); }
static long wrong_exscan(size_t count) { return rank > 0 ? wrong_first_ranks(count, rank) : 0; }
static long wrong_gather(size_t count) { return rank == 0 ? wrong_all_gather(count) : 0; }
static long wrong_scatter(size_t count) {
  long wrong = 0;
  size_t part = count / ranks;
  for (size_t i = 0; i < part; i++) wrong += out[i] != pattern(0, rank * part + i);
  return wrong;
}
static long wrong_all_to_all(size_t count) {
  long wrong = 0;
  size_t part = count / ranks;
  for (int from = 0; from < ranks; from++)
    for (size_t i = 0; i < part; i++) wrong += out[from * part + i] != pattern(from, rank * part + i);
  return wrong;
}
static long wrong_send_recv(size_t count) { return rank < 2 ? wrong_broadcast(count) : 0; }

static const Operation operations[] = {
    {"all_reduce", run_all_reduce, wrong_all_reduce, false, 1},
    {"broadcast", run_broadcast, wrong_broadcast, true, 1},
    {"all_gather", run_all_gather, wrong_all_gather, false, 1},
    {"reduce_scatter", run_reduce_scatter, wrong_reduce_scatter, false, 1},
    {"reduce", run_reduce, wrong_reduce, false, 1},
    {"gather", run_gather, wrong_gather, false, 1},
    {"scatter", run_scatter, wrong_scatter, true, 1},
    {"all_to_all", run_all_to_all, wrong_all_to_all, false, 1},
    {"scan", run_scan, wrong_scan, true, 1},
    {"exscan", run_exscan, wrong_exscan, true, 1},
    {"send_recv", run_send_recv, wrong_send_recv, false, 2},
};

static long check(const Operation *op, size_t count) {
  for (size_t i = 0; i < count; i++) in[i] = pattern(rank, i);
  fill(out, count, -1);
  op->run(count);
  long wrong = op->wrong(count), total = 0;
  MPI_Allreduce(&wrong, &total, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  fill(in, count, 0);  // sums of zeros stay finite however often they are added
  return total;
}

static int agreed(int value) {
  MPI_Bcast(&value, 1, MPI_INT, 0, MPI_COMM_WORLD);
  return value;
}

static double estimate_us(const Operation *op, size_t count, int runs) {
  double samples_us[WARM_UPS_MAX];
  MPI_Barrier(MPI_COMM_WORLD);
  for (int i = 0; i < runs; i++) {
    double start = now_us();
    op->run(count);
    samples_us[i] = now_us() - start;
  }
  return typical_us(samples_us, runs);
}

static void measure(const Options *options, const Operation *op, size_t bytes) {
  static double start_us[ITERATIONS_MAX], end_us[ITERATIONS_MAX], last_us[ITERATIONS_MAX];
  size_t count = bytes / sizeof(float);
  long wrong = check(op, count);
  int warm = agreed(warm_ups(options, estimate_us(op, count, PROBES)));
  int runs = agreed(iterations(options, estimate_us(op, count, warm)));
  MPI_Barrier(MPI_COMM_WORLD);
  double cpu = cpu_us();
  for (int i = 0; i < runs; i++) {
    if (options->touch) fill(in, count, 1);
    if (options->touch || op->ends_at_last_rank) MPI_Barrier(MPI_COMM_WORLD);
    start_us[i] = now_us();
    op->run(count);
    end_us[i] = now_us();
  }
  cpu = (cpu_us() - cpu) / runs / op->ops_per_run;
  double cpu_total = 0;
  MPI_Reduce(&cpu, &cpu_total, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  MPI_Reduce(end_us, last_us, runs, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  const double *finish_us = op->ends_at_last_rank ? last_us : end_us;
  for (int i = 0; i < runs; i++) start_us[i] = (finish_us[i] - start_us[i]) / op->ops_per_run;
  if (rank == 0) report(options, ranks, bytes, start_us, runs, cpu_total, wrong);
}

static void leave(int signal_number) {
  (void)signal_number;
  _exit(0);
}

// MPICH over TCP with more ranks than processors now and then never returns from MPI_Finalize. All is measured by then.
static void finalize(void) {
  MPI_Barrier(MPI_COMM_WORLD);
  signal(SIGALRM, leave);
  alarm(FINALIZE_SECONDS_MAX);
  MPI_Finalize();
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  Options options = parse_options(argc, argv, (Options){.peer = "mpi", .link = "memory", .op = "all_reduce"});
  in = allocate(largest_size(&options), MAP_PRIVATE);
  out = allocate(largest_size(&options), MAP_PRIVATE);
  for (size_t o = 0; o < sizeof operations / sizeof *operations; o++)
    if (!strcmp(operations[o].name, options.op))
      for (int i = 0; i < options.sizes_len; i++) measure(&options, &operations[o], options.sizes[i]);
  finalize();
  return 0;
}
