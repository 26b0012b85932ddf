// spanalloc-measure: runs one command and measures its whole process tree.
//
// Memory is RSS + page tables, because a memory cgroup is charged for both. The kernel keeps a peak
// only for the RSS of a single process, so two readings are combined:
//   - at the exit stop of every process (ptrace, PTRACE_EVENT_EXIT), when its memory still stands:
//     the kernel's peak RSS (VmHWM) plus its page tables (VmPTE). Exact for one process, however
//     short it runs.
//   - a sample of all living processes every few milliseconds. More than one process share pages,
//     so there the proportional share (PSS) of each is summed.
// The peak is the largest of all readings.
//
// ptrace costs a stop at fork, exec and exit of a process and at each signal. Threads are
// not traced, so that programs with many short threads run at their own speed; a process
// forked by a thread other than the first is found by the samples instead, through the
// kernel's list of children.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "process_tree.h"

enum { kExecFailed = 127, kNotExecutable = 126, kTimedOut = 124, kOwnFailure = 125 };
enum { kChildrenEvery = 8 };  // samples between two looks for children that threads have forked

// Written and read under the lock of `tree`, but for `expected`, which is constant.
static struct {
  uint64_t samples, exit_readings;
  const char* expected;  // object that every process is expected to have mapped, or NULL
  uint64_t expected_yes, expected_no;
  bool root_mapped_expected;
  bool timed_out;
  bool done;
} g;

static pid_t g_root;
static double g_interval_s = 0.005;
static double g_timeout_s = 0;
static double g_share = 0.1;  // most of the time that goes into reading

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void die(const char* what) {
  fprintf(stderr, "spanalloc-measure: %s: %s\n", what, strerror(errno));
  exit(kOwnFailure);
}

// ---- the sampler ----

static void sleep_for(double seconds) {
  struct timespec t = {.tv_sec = (time_t)seconds,
                       .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
  nanosleep(&t, NULL);
}

static void* sample(void* argument) {
  const double deadline = g_timeout_s > 0 ? now() + g_timeout_s : 0;
  bool done = false;
  (void)argument;
  while (!done) {
    const double begin = now();
    pthread_mutex_lock(&tree.lock);
    if (g.samples % kChildrenEvery == 0) {
      tree_drop_vanished();
      tree_add_untraced_children();
    }
    tree_read(0);
    g.samples++;
    if (deadline > 0 && begin > deadline) {
      g.timed_out = true;
      for (size_t i = 0; i < tree.count; i++) kill(tree.processes[i].pid, SIGKILL);
      kill(g_root, SIGKILL);
    }
    done = g.done;
    pthread_mutex_unlock(&tree.lock);
    // Reading takes time from what is measured, the more the more processes and pages there are.
    const double pause = (now() - begin) * (1 / g_share - 1);
    sleep_for(pause > g_interval_s ? pause : g_interval_s);
  }
  return NULL;
}

// ---- the tracer ----

static void resume(pid_t pid, int signal) {
  ptrace(PTRACE_CONT, pid, NULL, (void*)(intptr_t)signal);
}

// A child announced by its parent's fork event. Its own first stop may have
// come before: then it waits.
static void child_announced(pid_t parent, bool own_memory) {
  unsigned long child = 0;
  if (ptrace(PTRACE_GETEVENTMSG, parent, NULL, &child) != 0) return;
  pthread_mutex_lock(&tree.lock);
  struct Process* p = tree_add((pid_t)child);
  bool held = false;
  if (p != NULL) {
    held = p->held;
    *p = (struct Process){
        .pid = p->pid, .traced = true, .announced = true, .own_memory = own_memory};
  }
  pthread_mutex_unlock(&tree.lock);
  if (held) resume((pid_t)child, 0);
}

static void first_stop(pid_t pid) {
  pthread_mutex_lock(&tree.lock);
  struct Process* p = tree_add(pid);
  const bool hold = p != NULL && !p->announced;
  if (hold) p->held = p->traced = true;
  pthread_mutex_unlock(&tree.lock);
  if (!hold) resume(pid, 0);
}

static void executed(pid_t pid) {
  pthread_mutex_lock(&tree.lock);
  struct Process* p = tree_add(pid);
  if (p != NULL)
    *p = (struct Process){.pid = pid, .traced = true, .announced = true, .own_memory = true};
  pthread_mutex_unlock(&tree.lock);
}

static void exiting(pid_t pid) {
  pthread_mutex_lock(&tree.lock);
  struct Process* p = tree_find(pid);
  if (p != NULL && p->own_memory) {
    tree_read(pid);
    g.exit_readings++;
    if (g.expected != NULL) {
      const bool mapped = maps_object(pid, g.expected);
      if (mapped) g.expected_yes++;
      if (!mapped) g.expected_no++;
      if (pid == g_root) g.root_mapped_expected = mapped;
    }
  }
  pthread_mutex_unlock(&tree.lock);
}

static bool is_stop_signal(int signal) {
  return signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU;
}

static void handle_stop(pid_t pid, int status) {
  const int signal = WSTOPSIG(status);
  switch (status >> 16) {
    case 0:
      resume(pid, signal);
      return;
    case PTRACE_EVENT_STOP:
      if (is_stop_signal(signal)) {
        ptrace(PTRACE_LISTEN, pid, NULL, NULL);
      } else {
        first_stop(pid);
      }
      return;
    case PTRACE_EVENT_FORK:
      child_announced(pid, true);
      break;
    case PTRACE_EVENT_VFORK:
      child_announced(pid, false);
      break;
    case PTRACE_EVENT_EXEC:
      executed(pid);
      break;
    case PTRACE_EVENT_EXIT:
      exiting(pid);
      break;
    default:
      break;
  }
  resume(pid, 0);
}

// Until the root has ended. Processes that it leaves behind run on, untraced, once this one ends.
static int trace_until_end(struct rusage* usage) {
  for (;;) {
    int status;
    pid_t pid = wait4(-1, &status, __WALL, usage);
    if (pid < 0 && errno == EINTR) continue;
    if (pid < 0) die("wait4");
    if (WIFSTOPPED(status)) {
      handle_stop(pid, status);
      continue;
    }
    pthread_mutex_lock(&tree.lock);
    tree_drop(pid);
    pthread_mutex_unlock(&tree.lock);
    if (pid == g_root) return status;
  }
}

// ---- starting and reporting ----

static void prepend_preload(const char* path) {
  const char* old = getenv("LD_PRELOAD");
  char* joined = NULL;
  if (asprintf(&joined, "%s%s%s", path, old != NULL && *old != '\0' ? ":" : "",
               old != NULL ? old : "") < 0) {
    die("asprintf");
  }
  setenv("LD_PRELOAD", joined, 1);
  free(joined);
}

struct Options {
  const char* out;
  const char* preload;
  const char* set[16];
  int set_count;
  char** command;
};

static _Noreturn void run_command(const struct Options* o, int go, int failure) {
  char byte;
  if (read(go, &byte, 1) != 1) _exit(kOwnFailure);
  for (int i = 0; i < o->set_count; i++) putenv((char*)o->set[i]);
  if (o->preload != NULL) prepend_preload(o->preload);
  execvp(o->command[0], o->command);
  const int error = errno;
  if (write(failure, &error, sizeof error) < 0) _exit(kOwnFailure);
  _exit(kExecFailed);
}

// Signals sent to this process go on to the command. Those of the terminal have reached it already.
static void forward(int signal, siginfo_t* info, void* context) {
  (void)context;
  if (info->si_code != SI_KERNEL && g_root > 0) kill(g_root, signal);
}

static void forward_signals(void) {
  struct sigaction action = {.sa_sigaction = forward, .sa_flags = SA_SIGINFO | SA_RESTART};
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  sigaction(SIGHUP, &action, NULL);
  sigaction(SIGQUIT, &action, NULL);
}

static double seconds(struct timeval t) {
  return (double)t.tv_sec + (double)t.tv_usec * 1e-6;
}

static void report(const struct Options* o, int status, double wall, const struct rusage* u) {
  int fd = STDERR_FILENO;
  if (o->out != NULL) fd = open(o->out, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) die(o->out);
  // No ptrace here: the kernel's peak RSS of the largest process is the floor
  if (g.exit_readings == 0) {
    raise_to(&tree.peak_rss_kib, (uint64_t)u->ru_maxrss);
    raise_to(&tree.peak_kib, (uint64_t)u->ru_maxrss + tree.peak_page_tables_kib);
  }
  dprintf(
      fd,
      "{\"exit_code\": %d, \"signal\": %d, \"timed_out\": %s, \"wall_s\": %.6f, \"user_s\": %.6f, "
      "\"system_s\": %.6f, \"minor_faults\": %ld, \"major_faults\": %ld, \"voluntary_switches\": "
      "%ld, "
      "\"involuntary_switches\": %ld, \"peak_kib\": %lu, "
      "\"peak_rss_kib\": %lu, \"peak_page_tables_kib\": %lu, \"processes\": %lu, "
      "\"most_processes_at_once\": %lu, \"exit_readings\": %lu, \"samples\": %lu, "
      "\"expected_mapped\": %s, \"processes_with_expected\": %lu, \"processes_without_expected\": "
      "%lu, "
      "\"process_id\": %d}\n",
      WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0,
      g.timed_out ? "true" : "false", wall, seconds(u->ru_utime), seconds(u->ru_stime),
      u->ru_minflt, u->ru_majflt, u->ru_nvcsw, u->ru_nivcsw, tree.peak_kib, tree.peak_rss_kib,
      tree.peak_page_tables_kib, tree.seen, tree.most_at_once, g.exit_readings, g.samples,
      g.root_mapped_expected ? "true" : "false", g.expected_yes, g.expected_no, (int)g_root);
}

// Ends this process the way the command ended.
static _Noreturn void end_like(int status) {
  if (g.timed_out) exit(kTimedOut);
  if (WIFEXITED(status)) exit(WEXITSTATUS(status));
  const int signal = WTERMSIG(status);
  setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});  // one core dump, the command's, is enough
  struct sigaction standard = {.sa_handler = SIG_DFL};
  sigaction(signal, &standard, NULL);
  raise(signal);
  exit(128 + signal);
}

static void usage(FILE* to) {
  fputs(
      "usage: spanalloc-measure [options] -- COMMAND...\n"
      "Runs COMMAND and writes one JSON line with its time, CPU, page faults, context switches and "
      "peak\n"
      "memory (RSS + page tables, the whole process tree). Ends with the command's exit code or "
      "signal.\n"
      "  --out FILE        where the line goes (default: stderr)\n"
      "  --preload LIST    put LIST in front of LD_PRELOAD for COMMAND\n"
      "  --set NAME=VALUE  set a variable for COMMAND (up to 16 times)\n"
      "  --expect OBJECT   check at each process's end that OBJECT (a real path) is mapped in it\n"
      "  --timeout SECS    kill the process tree after SECS; exit code 124\n"
      "  --interval MS     time between two samples (default 5)\n"
      "  --share PERCENT   wait longer where reading would take more of one CPU than this (default "
      "10)\n"
      "example: spanalloc-measure --preload build/release/lib/libspanalloc.so -- ls -l\n",
      to);
}

static struct Options parse(int argc, char** argv) {
  static const struct option known[] = {{"out", required_argument, NULL, 'o'},
                                        {"preload", required_argument, NULL, 'p'},
                                        {"set", required_argument, NULL, 's'},
                                        {"expect", required_argument, NULL, 'e'},
                                        {"timeout", required_argument, NULL, 't'},
                                        {"interval", required_argument, NULL, 'i'},
                                        {"share", required_argument, NULL, 'r'},
                                        {"help", no_argument, NULL, 'h'},
                                        {NULL, 0, NULL, 0}};
  struct Options o = {0};
  for (int c; (c = getopt_long(argc, argv, "+h", known, NULL)) != -1;) {
    if (c == 'o')
      o.out = optarg;
    else if (c == 'p')
      o.preload = optarg;
    else if (c == 'e')
      g.expected = optarg;
    else if (c == 't')
      g_timeout_s = strtod(optarg, NULL);
    else if (c == 'i')
      g_interval_s = strtod(optarg, NULL) / 1000;
    else if (c == 'r' && strtod(optarg, NULL) > 0 && strtod(optarg, NULL) <= 100)
      g_share = strtod(optarg, NULL) / 100;
    else if (c == 's' && o.set_count < 16 && strchr(optarg, '=') != NULL)
      o.set[o.set_count++] = optarg;
    else {
      usage(c == 'h' ? stdout : stderr);
      exit(c == 'h' ? 0 : kOwnFailure);
    }
  }
  o.command = argv + optind;
  if (*o.command == NULL) {
    usage(stderr);
    exit(kOwnFailure);
  }
  return o;
}

int main(int argc, char** argv) {
  const struct Options o = parse(argc, argv);
  int go[2], failure[2];
  if (pipe2(go, O_CLOEXEC) != 0 || pipe2(failure, O_CLOEXEC) != 0) die("pipe");
  g_root = fork();
  if (g_root < 0) die("fork");
  if (g_root == 0) run_command(&o, go[0], failure[1]);
  close(failure[1]);
  forward_signals();

  const long events =
      PTRACE_O_TRACEEXIT | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC;
  const bool traced = ptrace(PTRACE_SEIZE, g_root, NULL, (void*)events) == 0;
  tree.processes[0] =
      (struct Process){.pid = g_root, .traced = traced, .announced = true, .own_memory = !traced};
  tree.count = tree.seen = 1;
  pthread_t sampler;
  if (pthread_create(&sampler, NULL, sample, NULL) != 0) die("pthread_create");

  const double begin = now();
  if (write(go[1], "", 1) != 1) die("write");
  struct rusage used;
  const int status = trace_until_end(&used);
  const double wall = now() - begin;
  pthread_mutex_lock(&tree.lock);
  g.done = true;
  pthread_mutex_unlock(&tree.lock);
  pthread_join(sampler, NULL);

  int error;
  if (read(failure[0], &error, sizeof error) == (ssize_t)sizeof error) {
    fprintf(stderr, "spanalloc-measure: %s: %s\n", o.command[0], strerror(error));
    return error == ENOENT ? kExecFailed : kNotExecutable;
  }
  report(&o, status, wall, &used);
  end_like(status);
}
