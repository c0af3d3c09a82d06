/* Tries to reach the host from a container; prints one line for each attempt: what, and `refused` or what it got. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static void tell(const char *what, int got) { printf("%s: %s\n", what, got ? "REACHED" : "refused"); }

static int writes(const char *path) {
  int fd = open(path, O_WRONLY);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

static int reads(const char *path) {
  char buffer[64];
  int fd = open(path, O_RDONLY);
  int got = fd >= 0 ? (int)read(fd, buffer, sizeof buffer) : 0;
  if (fd >= 0) close(fd);
  return got > 0;
}

/* Makes a new file in a folder that is bound read-only. */
static int makes(const char *folder) {
  char path[4096];
  snprintf(path, sizeof path, "%s/made", folder);
  int fd = open(path, O_WRONLY | O_CREAT, 0644);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

static int clears(int at, const char *path, unsigned flags, uint64_t attributes) {
  struct { uint64_t set, clear, propagation, users; } change = {0, attributes, 0, 0};
  return syscall(442, at, path, flags, &change, sizeof change) == 0;
}

static int undoes(const char *folder) {
  unsigned long all[] = {0, MS_NOSUID, MS_NODEV, MS_NOSUID | MS_NODEV, MS_NOSUID | MS_NODEV | MS_RELATIME};
  for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
    if (!mount(NULL, folder, NULL, MS_REMOUNT | MS_BIND | all[i], NULL)) return 1;
  if (!mount("esker", folder, NULL, MS_REMOUNT, NULL)) return 1;
  if (clears(AT_FDCWD, folder, 0, 1 /* RDONLY */)) return 1;
  /* A detached copy, and a copy elsewhere. */
  int tree = (int)syscall(428, AT_FDCWD, folder, 1 | O_CLOEXEC);
  if (tree >= 0 && clears(tree, "", AT_EMPTY_PATH, 1)) return 1;
  if (tree >= 0) close(tree);
  if (!mount(folder, "/mnt", NULL, MS_BIND, NULL)) {
    mount(NULL, "/mnt", NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV, NULL);
    if (makes("/mnt")) return 1;
  }
  return makes(folder);
}

/* In one more user namespace, where this process may mount. */
static int apart(int (*attempt)(const char *), const char *path) {
  fflush(stdout);
  pid_t child = fork();
  if (!child) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS)) _exit(0);
    _exit(attempt(path));
  }
  int status;
  waitpid(child, &status, 0);
  return status != 0;
}

static int uncovers(const char *path) { return !umount2(path, MNT_DETACH); }

static int new_proc(const char *path) {
  (void)path;
  if (unshare(CLONE_NEWPID)) return 0;
  pid_t child = fork();
  if (!child) _exit(!mount("proc", "/mnt", "proc", 0, NULL) && writes("/mnt/sys/kernel/core_pattern"));
  int status;
  waitpid(child, &status, 0);
  return status != 0;
}

static int moves(const char *path) {
  return !mount(path, "/mnt", NULL, MS_MOVE, NULL);
}

int main(int count, char **values) {
  const char *bound = count > 1 ? values[1] : "/none", *socket_name = count > 2 ? values[2] : "none";
  key_t key = count > 3 ? atoi(values[3]) : 1;
  tell("remount", undoes(bound));
  tell("remount in a namespace", apart(undoes, bound));
  tell("unmount", uncovers(bound));
  tell("unmount in a namespace", apart(uncovers, bound));
  tell("move in a namespace", apart(moves, bound));
  const char *covers[] = {"/proc", "/proc/sys", "/proc/kcore", "/sys", "/sys/firmware", "/dev", "/dev/null", "/etc/hosts"};
  for (unsigned i = 0; i < sizeof covers / sizeof *covers; i++) {
    tell("uncover", uncovers(covers[i]) || apart(uncovers, covers[i]) || apart(moves, covers[i]));
  }
  if (count <= 4) return 0;
  const char *written[] = {"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches",
                           "/proc/sysrq-trigger", "/proc/irq/default_smp_affinity", "/sys/kernel/mm/ksm/run",
                           "/sys/power/state", "/sys/kernel/uevent_helper", "/sys/module/kernel/parameters/panic",
                           "/sys/kernel/profiling", "/proc/1/oom_score_adj", "/proc/1/mem", "/proc/self/exe"};
  for (unsigned i = 0; i < sizeof written / sizeof *written; i++) tell(written[i], writes(written[i]));
  const char *read_from[] = {"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/1/environ", "/proc/1/cwd/etc/passwd",
                             "/dev/kmsg", "/dev/mem", "/dev/fuse", "/dev/sda", "/dev/vda", "/dev/loop-control"};
  for (unsigned i = 0; i < sizeof read_from / sizeof *read_from; i++) tell(read_from[i], reads(read_from[i]));
  const char *hidden[] = {"/sys/fs/cgroup", "/sys/kernel/debug", "/sys/kernel/tracing", "/sys/firmware", "/dev/pts"};
  for (unsigned i = 0; i < sizeof hidden / sizeof *hidden; i++) {
    int entries = 0;
    DIR *folder = opendir(hidden[i]);
    for (struct dirent *entry; folder && (entry = readdir(folder));)
      entries += entry->d_name[0] != '.' && strcmp(entry->d_name, "ptmx");
    if (folder) closedir(folder);
    tell(hidden[i], entries);
  }
  tell("new proc", apart(new_proc, ""));
  tell("device", !mknod("/tmp/disk", S_IFBLK | 0600, makedev(8, 0)) || !mknod("/tmp/mem", S_IFCHR | 0600, makedev(1, 1)));
  char letter = 'x';
  tell("typing", !(ioctl(0, TIOCSTI, &letter) < 0 && errno == EPERM));
  tell("typing with high bits", !(syscall(SYS_ioctl, 0, 0x100000000ul | TIOCSTI, &letter) < 0 && errno == EPERM));
  letter = 2;
  tell("console", !(ioctl(0, TIOCLINUX, &letter) < 0 && errno == EPERM));
  tell("keys", syscall(SYS_keyctl, 6 /* describe */, -3 /* session */, NULL, 0) >= 0);
  int inherited = 0;
  for (int fd = 3; fd < 64; fd++) inherited += fcntl(fd, F_GETFD) >= 0;
  tell("descriptors", inherited);
  tell("shared memory", shmget(key, 1, 0) >= 0);
  tell("environment", getenv("SECRET_OF_THE_CALLER") != NULL);
  int landlock = (int)syscall(444, NULL, 0, 1);
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  strcpy(address.sun_path + 1, socket_name);
  int stream = socket(AF_UNIX, SOCK_STREAM, 0);
  socklen_t length = offsetof(struct sockaddr_un, sun_path) + 1 + strlen(socket_name);
  if (landlock >= 6) tell("abstract socket", !connect(stream, (struct sockaddr *)&address, length));
  tell("new privileges", !(syscall(SYS_prctl, 39 /* PR_GET_NO_NEW_PRIVS */, 0, 0, 0, 0) == 1));
  tell("administrator", syscall(SYS_prctl, 23 /* PR_CAPBSET_READ */, 21 /* SYS_ADMIN */, 0, 0, 0) == 1);
  int map = open("/proc/self/uid_map", O_RDONLY);
  char ids[256] = {0};
  unsigned inner, outer = 0;
  if (map >= 0 && read(map, ids, sizeof ids - 1) > 0) sscanf(ids, "%u %u", &inner, &outer);
  printf("outside it is %u\n", outer);
  return 0;
}
