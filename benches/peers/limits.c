// What this machine allows, measured the way the peers are, so that a result can be given as a share of a limit.
// Flags: see bench.h; --op is one of
//
//   stream           Two processes on TCP loopback; each sends S bytes out of one buffer and receives S bytes into
//                    another, both walked from end to end, so they are as cold as an operation's own buffers of that
//                    size. One exchange is what a two-rank all_reduce of S bytes has to move. --connections 1 or 2,
//                    --congestion NAME, --chunk BYTES.
//   ping_pong        A round trip of S bytes on TCP loopback, spinning on recv.
//   direct_threads   The all_reduce of two threads that see each other's buffer: a flag sync, each thread reads both
//                    inputs of its half and writes both results, a flag sync.
//   direct_processes The same between two processes over a shared mapping.
//   pull_processes   The same where each process writes its own buffer only: it reduces its half into that, and copies the
//                    other half from where the other one has reduced it, a chunk at a time.
//   wake             One way from write(eventfd) on one core to the return of the read that sleeps on another.
//
// Both sides are pinned, to the first two processors of the affinity mask; the side that times is rank 0. `variant`
// choices (streaming stores or not) are made per size, by measuring: the limit is the better one.
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "bench.h"

enum {
  STREAM_CHUNK_BYTES = 256 << 10,  // the fastest of 64 KiB, 256 KiB, 1, 4 and 64 MiB from 1 MiB on; no matter below
  SPINS_BEFORE_YIELD = 1 << 14,    // two spinning sides on two cores never yield; with one core they must
  WAKE_PAUSE_US = 200,             // long enough for the reader's core to go idle
};

// ---- two sides, of threads or of processes

typedef struct {
  _Alignas(128) _Atomic uint64_t value;
} Flag;

// What both sides see. Flags only grow: round k is done when a flag holds at least k.
typedef struct {
  Flag arrived[2], finished[2], reduced[2];
  _Alignas(128) _Atomic int runs;
  _Atomic int64_t side_cpu_ns, wrong;
} Shared;

typedef struct Pair {
  const Options *options;
  Shared *shared;
  uint64_t round[2];  // of each side, touched by that side only
  size_t bytes;
  float *buffer[2];
  int in_fd[2], out_fd[2];
  void (*prepare)(struct Pair *);  // in the side's own process, before anything else
  void (*run)(struct Pair *, int side);
  long (*check)(struct Pair *, int side);
  void (*touch)(struct Pair *, int side);
  bool streaming;
  double *samples_us;
} Pair;

static void relax(uint32_t *spins) {
#if defined(__x86_64__)
  _mm_pause();
#endif
  if (++*spins % SPINS_BEFORE_YIELD == 0) sched_yield();
}

static void wait_for(Flag *flag, uint64_t value) {
  uint32_t spins = 0;
  while (atomic_load_explicit(&flag->value, memory_order_acquire) < value) relax(&spins);
}

static void meet(Flag flags[2], int side, uint64_t round) {
  atomic_store_explicit(&flags[side].value, round, memory_order_release);
  wait_for(&flags[!side], round);
}

static void barrier(Pair *pair, int side) { meet(pair->shared->arrived, side, ++pair->round[side]); }

static void pin(int side) {
  cpu_set_t allowed, one;
  sched_getaffinity(0, sizeof allowed, &allowed);
  if (CPU_COUNT(&allowed) < 2) return;
  int seen = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &allowed) && seen++ == side) {
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      sched_setaffinity(0, sizeof one, &one);
      return;
    }
}

static double thread_cpu_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

static double estimate_us(Pair *pair, int side, int runs) {
  double samples_us[WARM_UPS_MAX];
  barrier(pair, side);
  for (int i = 0; i < runs; i++) {
    double start = now_us();
    pair->run(pair, side);
    samples_us[i] = now_us() - start;
  }
  return typical_us(samples_us, runs);
}

// Side 0 decides, both go on with its value.
static int agreed(Pair *pair, int side, int value) {
  if (side == 0) atomic_store(&pair->shared->runs, value);
  barrier(pair, side);
  int runs = atomic_load(&pair->shared->runs);
  barrier(pair, side);
  return runs;
}

static void side_main(Pair *pair, int side) {
  pin(side);
  if (pair->prepare) pair->prepare(pair);
  atomic_fetch_add(&pair->shared->wrong, pair->check ? pair->check(pair, side) : 0);
  int warm = agreed(pair, side, warm_ups(pair->options, estimate_us(pair, side, PROBES)));
  int runs = agreed(pair, side, iterations(pair->options, estimate_us(pair, side, warm)));
  double cpu = thread_cpu_us();
  for (int i = 0; i < runs; i++) {
    if (pair->options->touch && pair->touch) {
      pair->touch(pair, side);
      barrier(pair, side);
    }
    double start = now_us();
    pair->run(pair, side);
    if (side == 0) pair->samples_us[i] = now_us() - start;
  }
  cpu = (thread_cpu_us() - cpu) / runs;
  atomic_fetch_add(&pair->shared->side_cpu_ns, (int64_t)(cpu * 1e3));
  barrier(pair, side);
}

static void *thread_of_side_1(void *pair) {
  side_main(pair, 1);
  return NULL;
}

static void reset(Pair *pair) {
  memset(pair->shared, 0, sizeof *pair->shared);
  pair->round[0] = pair->round[1] = 0;
}

static void run_threads(Pair *pair) {
  pthread_t other;
  cpu_set_t before;
  sched_getaffinity(0, sizeof before, &before);
  reset(pair);
  pthread_create(&other, NULL, thread_of_side_1, pair);
  side_main(pair, 0);
  pthread_join(other, NULL);
  sched_setaffinity(0, sizeof before, &before);
}

static void run_processes(Pair *pair) {
  cpu_set_t before;
  sched_getaffinity(0, sizeof before, &before);
  reset(pair);
  fflush(stdout);
  pid_t other = fork();
  if (other == 0) {
    side_main(pair, 1);
    _exit(0);
  }
  side_main(pair, 0);
  waitpid(other, NULL, 0);
  sched_setaffinity(0, sizeof before, &before);
}

static void report_pair(Pair *pair) {
  report(pair->options, 2, pair->bytes, pair->samples_us, atomic_load(&pair->shared->runs),
         atomic_load(&pair->shared->side_cpu_ns) * 1e-3, atomic_load(&pair->shared->wrong));
}

static void touch_buffer(Pair *pair, int side) { fill(pair->buffer[side], pair->bytes / sizeof(float), 1); }

// ---- direct all_reduce

static void add_into_both(float *a, float *b, size_t count) {
  for (size_t i = 0; i < count; i++) a[i] = b[i] = a[i] + b[i];
}

// Streaming stores skip reading the line that is about to be overwritten; a gain only beyond the last cache.
static void add_into_both_streaming(float *a, float *b, size_t count) {
  size_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= count; i += 16) {
    __m512 sum = _mm512_add_ps(_mm512_load_ps(a + i), _mm512_load_ps(b + i));
    _mm512_stream_ps(a + i, sum);
    _mm512_stream_ps(b + i, sum);
  }
  _mm_sfence();
#elif defined(__AVX__)
  for (; i + 8 <= count; i += 8) {
    __m256 sum = _mm256_add_ps(_mm256_load_ps(a + i), _mm256_load_ps(b + i));
    _mm256_stream_ps(a + i, sum);
    _mm256_stream_ps(b + i, sum);
  }
  _mm_sfence();
#endif
  add_into_both(a + i, b + i, count - i);
}

static void run_direct(Pair *pair, int side) {
  uint64_t round = ++pair->round[side];
  size_t count = pair->bytes / sizeof(float), half = count / 2 / 16 * 16;
  if (half == 0) half = count / 2;
  size_t from = side ? half : 0, length = side ? count - half : half;
  meet(pair->shared->arrived, side, round);
  if (pair->streaming) add_into_both_streaming(pair->buffer[0] + from, pair->buffer[1] + from, length);
  else add_into_both(pair->buffer[0] + from, pair->buffer[1] + from, length);
  meet(pair->shared->finished, side, round);
}

enum { PULL_CHUNK_BYTES = 128 << 10 };

static void run_pull(Pair *pair, int side) {
  uint64_t round = ++pair->round[side];
  size_t count = pair->bytes / sizeof(float), half = count / 2 / 16 * 16, chunk = PULL_CHUNK_BYTES / sizeof(float);
  if (half == 0) half = count / 2;
  size_t from[2] = {0, half}, length[2] = {half, count - half};
  float *mine = pair->buffer[side];
  const float *theirs = pair->buffer[1 - side];
  uint64_t chunks[2], base;
  for (int s = 0; s < 2; s++) chunks[s] = (length[s] + chunk - 1) / chunk;
  base = (round - 1) * (chunks[0] > chunks[1] ? chunks[0] : chunks[1]);
  meet(pair->shared->arrived, side, round);
  for (uint64_t c = 0; c < chunks[side]; c++) {
    size_t start = from[side] + c * chunk, end = start + chunk, last = from[side] + length[side];
    if (end > last) end = last;
    for (size_t i = start; i < end; i++) mine[i] += theirs[i];
    atomic_store_explicit(&pair->shared->reduced[side].value, base + c + 1, memory_order_release);
  }
  for (uint64_t c = 0; c < chunks[1 - side]; c++) {
    size_t start = from[1 - side] + c * chunk, end = start + chunk, last = from[1 - side] + length[1 - side];
    if (end > last) end = last;
    wait_for(&pair->shared->reduced[1 - side], base + c + 1);
    memcpy(mine + start, theirs + start, (end - start) * sizeof(float));
  }
  meet(pair->shared->finished, side, round);
}

static long check_direct(Pair *pair, int side) {
  float *mine = pair->buffer[side];
  size_t count = pair->bytes / sizeof(float);
  long wrong = 0;
  for (size_t i = 0; i < count; i++) mine[i] = pattern(side, i);
  barrier(pair, side);
  pair->run(pair, side);
  for (size_t i = 0; i < count; i++) wrong += mine[i] != pattern_sum(2, i);
  barrier(pair, side);
  fill(mine, count, 0);
  return wrong;
}

static void measure_direct(Options *options, bool processes, void (*run)(Pair *, int side)) {
  int map = processes ? MAP_SHARED : MAP_PRIVATE;
  size_t largest = largest_size(options);
  Pair pair = {.options = options, .run = run, .check = check_direct, .touch = touch_buffer};
  pair.shared = allocate(sizeof(Shared), map);
  for (int side = 0; side < 2; side++) pair.buffer[side] = allocate(largest, map);
  double *samples_us[2];
  for (int v = 0; v < 2; v++) samples_us[v] = calloc(ITERATIONS_MAX, sizeof(double));
  for (int i = 0; i < options->sizes_len; i++) {
    Shared result[2];
    double typical[2];
    pair.bytes = options->sizes[i];
    for (int v = 0; v < 2; v++) {
      pair.streaming = v == 1;
      pair.samples_us = samples_us[v];
      if (processes) run_processes(&pair);
      else run_threads(&pair);
      result[v] = *pair.shared;
      typical[v] = typical_us(samples_us[v], atomic_load(&result[v].runs));
    }
    int better = typical[1] < typical[0];
    *pair.shared = result[better];
    pair.samples_us = samples_us[better];
    report_pair(&pair);
  }
}

// ---- TCP

static void die(const char *what) {
  perror(what);
  exit(1);
}

static void set_up_socket(const Options *options, int fd) {
  int on = 1;
  if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on)) die("TCP_NODELAY");
  if (options->congestion &&
      setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, options->congestion, strlen(options->congestion)))
    die("TCP_CONGESTION");
}

static void connect_pair(const Options *options, int fds[2]) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(listener, (void *)&address, length) || listen(listener, 1)) die("listen");
  getsockname(listener, (void *)&address, &length);
  fds[0] = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(fds[0], (void *)&address, length)) die("connect");
  fds[1] = accept(listener, NULL, NULL);
  close(listener);
  for (int side = 0; side < 2; side++) set_up_socket(options, fds[side]);
}

static void open_connections(Pair *pair) {
  int fds[2];
  connect_pair(pair->options, fds);
  for (int side = 0; side < 2; side++) pair->in_fd[side] = pair->out_fd[side] = fds[side];
  if (pair->options->connections != 2) return;
  connect_pair(pair->options, fds);
  pair->out_fd[0] = fds[0];
  pair->in_fd[1] = fds[1];
}

static void close_connections(Pair *pair) {
  for (int side = 0; side < 2; side++) {
    close(pair->in_fd[side]);
    if (pair->out_fd[side] != pair->in_fd[side]) close(pair->out_fd[side]);
  }
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

static size_t moved(ssize_t result, const char *what) {
  if (result > 0) return (size_t)result;
  if (result == 0 || (errno != EAGAIN && errno != EINTR)) die(what);
  return 0;
}

// buffer[0] is what this side sends, buffer[1] where it receives. Each process allocates its own: huge pages that a
// fork has shared are split on the first write.
static void allocate_buffers(Pair *pair) {
  for (int b = 0; b < 2; b++) pair->buffer[b] = allocate(pair->bytes, MAP_PRIVATE);
}

static void run_exchange(Pair *pair, int side) {
  char *source = (char *)pair->buffer[0], *target = (char *)pair->buffer[1];
  size_t sent = 0, received = 0, bytes = pair->bytes, chunk = pair->options->chunk_bytes;
  uint32_t spins = 0;
  while (sent < bytes || received < bytes) {
    size_t before = sent + received;
    if (sent < bytes)
      sent += moved(send(pair->out_fd[side], source + sent, smaller(bytes - sent, chunk), MSG_DONTWAIT | MSG_NOSIGNAL),
                    "send");
    if (received < bytes)
      received += moved(
          recv(pair->in_fd[side], target + received, smaller(bytes - received, chunk), MSG_DONTWAIT), "recv");
    if (sent + received == before) relax(&spins);
  }
}

static long check_exchange(Pair *pair, int side) {
  size_t count = pair->bytes / sizeof(float);
  long wrong = 0;
  for (size_t i = 0; i < count; i++) pair->buffer[0][i] = pattern(side, i);
  fill(pair->buffer[1], count, -1);
  run_exchange(pair, side);
  for (size_t i = 0; i < count; i++) wrong += pair->buffer[1][i] != pattern(!side, i);
  return wrong;
}

static void touch_source(Pair *pair, int side) {
  (void)side;
  fill(pair->buffer[0], pair->bytes / sizeof(float), 1);
}

static void send_all(Pair *pair, int side) {
  for (size_t sent = 0; sent < pair->bytes;)
    sent += moved(send(pair->out_fd[side], (char *)pair->buffer[0] + sent, pair->bytes - sent, MSG_NOSIGNAL), "send");
}

static void receive_all_spinning(Pair *pair, int side) {
  for (size_t received = 0; received < pair->bytes;)
    received += moved(
        recv(pair->in_fd[side], (char *)pair->buffer[1] + received, pair->bytes - received, MSG_DONTWAIT), "recv");
}

static void run_ping_pong(Pair *pair, int side) {
  if (side == 0) send_all(pair, side);
  receive_all_spinning(pair, side);
  if (side == 1) send_all(pair, side);
}

static void measure_tcp(const Options *options, Pair pair) {
  pair.options = options;
  pair.prepare = allocate_buffers;
  pair.shared = allocate(sizeof(Shared), MAP_SHARED);
  pair.samples_us = calloc(ITERATIONS_MAX, sizeof(double));
  for (int i = 0; i < options->sizes_len; i++) {
    pair.bytes = options->sizes[i];
    open_connections(&pair);
    run_processes(&pair);
    close_connections(&pair);
    report_pair(&pair);
    for (int b = 0; b < 2; b++) munmap(pair.buffer[b], pair.bytes);
  }
}

// ---- wake

typedef struct {
  int go, done;  // eventfds
  int runs;
  _Atomic(double) woken_us;
} Wake;

static void signal_event(int fd) {
  uint64_t one = 1;
  if (write(fd, &one, sizeof one) != sizeof one) die("eventfd write");
}
static void sleep_on_event(int fd) {
  uint64_t value;
  if (read(fd, &value, sizeof value) != sizeof value) die("eventfd read");
}

static void *sleeper(void *context) {
  Wake *wake = context;
  pin(1);
  for (int i = 0; i < wake->runs; i++) {
    sleep_on_event(wake->go);
    atomic_store(&wake->woken_us, now_us());
    signal_event(wake->done);
  }
  return NULL;
}

static void measure_wake(Options *options) {
  Wake wake = {.go = eventfd(0, 0), .done = eventfd(0, 0)};
  wake.runs = iterations(options, WAKE_PAUSE_US);
  double *samples_us = calloc(wake.runs, sizeof(double)), cpu = cpu_us();
  pthread_t other;
  pthread_create(&other, NULL, sleeper, &wake);
  pin(0);
  for (int i = 0; i < wake.runs; i++) {
    for (double until = now_us() + WAKE_PAUSE_US; now_us() < until;) continue;
    double start = now_us();
    signal_event(wake.go);
    sleep_on_event(wake.done);
    samples_us[i] = atomic_load(&wake.woken_us) - start;
  }
  pthread_join(other, NULL);
  report(options, 2, sizeof(uint64_t), samples_us, wake.runs, (cpu_us() - cpu) / wake.runs, 0);
}

int main(int argc, char **argv) {
  Options options = parse_options(argc, argv,
                                  (Options){.peer = "limit", .link = "tcp", .op = "stream", .connections = 1,
                                            .chunk_bytes = STREAM_CHUNK_BYTES});
  if (!strcmp(options.op, "stream"))
    measure_tcp(&options, (Pair){.run = run_exchange, .check = check_exchange, .touch = touch_source});
  else if (!strcmp(options.op, "ping_pong"))
    measure_tcp(&options, (Pair){.run = run_ping_pong, .touch = touch_source});
  else if (!strcmp(options.op, "direct_threads")) measure_direct(&options, false, run_direct);
  else if (!strcmp(options.op, "direct_processes")) measure_direct(&options, true, run_direct);
  else if (!strcmp(options.op, "pull_processes")) measure_direct(&options, true, run_pull);
  else if (!strcmp(options.op, "wake")) measure_wake(&options);
  else {
    fprintf(stderr, "unknown op %s\n", options.op);
    return 2;
  }
  return 0;
}
