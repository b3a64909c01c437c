/* What libfabric's own fi_rma_bw does, in one process: one thread writes, another waits for it, with nothing checked.
 *
 *   rma PROVIDER ADDRESS BYTES WINDOW MILLISECONDS KIND WAIT
 *
 * KIND is `write` (fi_write: the receiver hears of nothing), `data` (fi_writedata) or `answer` (that, and 8 bytes back
 * the same way). WAIT is `spin`, as that program does, or `sleep` (on the queue's descriptor). The window is
 * topped up as writes complete, which is never slower than fi_rma_bw's way of letting it run empty first. Each write of
 * a window has memory of its own on both sides. Prints writes per second and microseconds of processor for one, after
 * a warm-up of a third of the time. `cargo xtask bench ofi --speed` compiles and runs it.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define ANSWER 8
#define READ 32
#define ACCESS (FI_WRITE | FI_REMOTE_WRITE)

static void must(const char *what, long code) {
    if (code >= 0) return;
    fprintf(stderr, "%s: %s (%ld)\n", what, fi_strerror((int)-code), -code);
    exit(1);
}

struct end {
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_cq *cq;
    struct fid_av *av;
    struct fid_ep *ep;
    struct fid_mr *source_mr, *window_mr;
    struct fi_context2 *contexts;
    char *source, *window;
    size_t sent; /* bytes of each write from here */
    uint64_t to, key;
    fi_addr_t peer;
    int fd;
};

static int window, sleeping;
static atomic_int stop;

static void *memory(size_t bytes) {
    char *p = NULL;
    if (posix_memalign((void **)&p, 4096, bytes)) exit(1);
    memset(p, 1, bytes);
    return p;
}

static void open_end(struct end *e, struct fi_info *info, size_t sent, size_t received) {
    must("fi_fabric", fi_fabric(info->fabric_attr, &e->fabric, NULL));
    must("fi_domain", fi_domain(e->fabric, info, &e->domain, NULL));
    struct fi_cq_attr cq = {.size = 4 * (size_t)window, .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_FD};
    if (!sleeping) cq.wait_obj = FI_WAIT_NONE;
    must("fi_cq_open", fi_cq_open(e->domain, &cq, &e->cq, NULL));
    struct fi_av_attr av = {.type = FI_AV_TABLE, .count = 1};
    must("fi_av_open", fi_av_open(e->domain, &av, &e->av, NULL));
    must("fi_endpoint", fi_endpoint(e->domain, info, &e->ep, NULL));
    must("fi_ep_bind", fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV));
    must("fi_ep_bind", fi_ep_bind(e->ep, &e->av->fid, 0));
    must("fi_enable", fi_enable(e->ep));
    if (sleeping) must("fi_control", fi_control(&e->cq->fid, FI_GETWAIT, &e->fd));
    e->sent = sent;
    e->source = memory((size_t)window * sent);
    e->window = memory((size_t)window * received);
    e->contexts = calloc((size_t)window, sizeof *e->contexts);
    must("fi_mr_reg", fi_mr_reg(e->domain, e->source, (size_t)window * sent, ACCESS, 0, 1, 0, &e->source_mr, NULL));
    must("fi_mr_reg", fi_mr_reg(e->domain, e->window, (size_t)window * received, ACCESS, 0, 2, 0, &e->window_mr, NULL));
}

static void introduce(struct end *from, struct end *to, struct fi_info *info) {
    char name[256];
    size_t bytes = sizeof name;
    must("fi_getname", fi_getname(&to->ep->fid, name, &bytes));
    if (fi_av_insert(from->av, name, 1, &from->peer, 0, NULL) != 1) must("fi_av_insert", -FI_EINVAL);
    from->to = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)to->window : 0;
    from->key = fi_mr_key(to->window_mr);
}

static int post(struct end *e, int slot, int data) {
    char *from = e->source + (size_t)slot * e->sent;
    uint64_t at = e->to + (uint64_t)slot * e->sent;
    void *desc = fi_mr_desc(e->source_mr), *context = &e->contexts[slot];
    ssize_t code = data
        ? fi_writedata(e->ep, from, e->sent, desc, (uint64_t)slot, e->peer, at, e->key, context)
        : fi_write(e->ep, from, e->sent, desc, e->peer, at, e->key, context);
    if (code != -FI_EAGAIN) must("fi_write", code);
    return code == 0;
}

/* Looks once: slots whose write has completed, and slots of which the peer has written. */
static int look(struct end *e, int *sent, int *sents, int *came, int *comes) {
    struct fi_cq_data_entry entries[READ];
    ssize_t n = fi_cq_read(e->cq, entries, READ);
    if (n == -FI_EAGAIN) return 0;
    must("fi_cq_read", n);
    for (ssize_t i = 0; i < n; i++) {
        if (entries[i].flags & FI_REMOTE_WRITE) came[(*comes)++] = (int)entries[i].data;
        else sent[(*sents)++] = (int)((struct fi_context2 *)entries[i].op_context - e->contexts);
    }
    return (int)n;
}

static void idle(struct end *e) {
    struct fid *queue = &e->cq->fid;
    struct pollfd fd = {.fd = e->fd, .events = POLLIN};
    if (sleeping && fi_trywait(e->fabric, &queue, 1) == 0) poll(&fd, 1, 1);
}

static void pin(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

static int answers;

static void *receive(void *at) {
    struct end *e = at;
    int *sent = calloc(READ, sizeof *sent), *came = calloc((size_t)window + READ, sizeof *came);
    int comes = 0;
    pin(1);
    while (!stop) {
        int sents = 0, n = look(e, sent, &sents, came, &comes);
        if (!answers) comes = 0;
        while (comes && post(e, came[comes - 1], 1)) comes--;
        if (!n) idle(e);
    }
    return NULL;
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double cpu(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

int main(int argc, char **argv) {
    if (argc != 8) return fprintf(stderr, "rma PROVIDER ADDRESS BYTES WINDOW MILLISECONDS KIND WAIT\n"), 2;
    size_t bytes = strtoull(argv[3], NULL, 10);
    window = atoi(argv[4]);
    double length = atof(argv[5]) / 1e3;
    int data = strcmp(argv[6], "write") != 0;
    answers = strcmp(argv[6], "answer") == 0;
    sleeping = strcmp(argv[7], "sleep") == 0;
    struct fi_info *hints = fi_allocinfo(), *info = NULL;
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup(argv[1]);
    must("fi_getinfo", fi_getinfo(FI_VERSION(1, 9), argv[2], NULL, FI_SOURCE, hints, &info));
    static struct end near, far;
    open_end(&near, info, bytes, ANSWER);
    open_end(&far, info, ANSWER, bytes);
    introduce(&near, &far, info);
    introduce(&far, &near, info);
    pthread_t receiver;
    pthread_create(&receiver, NULL, receive, &far);
    pin(0);
    int *spare = calloc((size_t)window + READ, sizeof *spare), *came = calloc((size_t)window + READ, sizeof *came);
    int spares = window, warm = 0;
    for (int i = 0; i < window; i++) spare[i] = i;
    double begun = seconds(), used = cpu(), took = 0, done = 0;
    for (;;) {
        double now = seconds();
        if (!warm && now - begun >= length / 3) warm = 1, begun = now, used = cpu(), done = 0;
        else if (warm && now - begun >= length) { took = now - begun; break; }
        while (spares && post(&near, spare[spares - 1], data)) spares--;
        int sents = 0, comes = 0, before = spares;
        int scratch[READ];
        int n = answers ? look(&near, scratch, &sents, spare + spares, &comes)
                        : look(&near, spare + spares, &sents, scratch, &comes);
        spares += answers ? comes : sents;
        done += spares - before;
        if (!n) idle(&near);
    }
    used = cpu() - used;
    /* The provider does not survive an end in the middle of a write that brings data. */
    for (double end = seconds() + 2; spares < window && seconds() < end;) {
        int sents = 0, comes = 0, scratch[READ];
        if (answers) look(&near, scratch, &sents, spare + spares, &comes), spares += comes;
        else look(&near, spare + spares, &sents, scratch, &comes), spares += sents;
    }
    stop = 1;
    printf("%.1f %.3f\n", done / took, used * 1e6 / done);
    fflush(stdout);
    /* Nothing is closed: the process ends here. */
    _exit(0);
}
