/* Load and an origin that keep a pace, for tools/bench. One thread, epoll, TCP on 127.0.0.1; Linux only.
 *
 *   paced closed PORT CONNECTIONS SECONDS TEMPLATE          each connection asks again as soon as it has its answer
 *   paced requests PORT CONNECTIONS RATE SECONDS TEMPLATE   open-loop load: RATE requests a second, whatever comes back
 *   paced streams PORT CONNECTIONS SECONDS TEMPLATE         read CONNECTIONS event streams until SECONDS are over
 *   paced origin RATE PORT...                               an origin of event streams, RATE chunks a second on each
 *
 * TEMPLATE is a file with one whole request; each run of twelve '@' in it is replaced by a counter. Each load ends with a
 * line of JSON on standard output, or with exit status 1 and a reason at the first answer that is not a whole 200. Under
 * an open loop a request's latency counts from when it was due, not from when it could be sent, so that a proxy that falls
 * behind pays for every request that it kept waiting. Each event carries the time at which it was written, so its delay
 * needs no second clock.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define MARK "@@@@@@@@@@@@"
#define MARK_BYTES 12
#define MOST_CONNECTIONS 4096
#define WARM_PART .1 /* requests due in the first tenth are sent, and their latency is not counted */
#define STAMP_BYTES 20
#define EVENT "data: %020llu {\"text\":\"a new word\"}\n\n" /* 50 bytes with its stamp */

typedef unsigned long long nanoseconds;

static _Noreturn void fail(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    fputc('\n', stderr);
    exit(1);
}

static nanoseconds now_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000ULL + at.tv_nsec;
}

static double number(const char *text, double least, double most) {
    char *end;
    double value = strtod(text, &end);
    if (*end || value < least || value > most) fail("%s is not a number from %g to %g", text, least, most);
    return value;
}

/* --- the latencies seen ----------------------------------------------------------------------------------------- */

static uint32_t *seen;
static size_t seen_count, seen_room;

static void note(nanoseconds took) {
    if (seen_count == seen_room) {
        seen_room = seen_room ? seen_room * 2 : 1 << 16;
        seen = realloc(seen, seen_room * sizeof *seen);
        if (!seen) fail("out of memory");
    }
    seen[seen_count++] = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took;
}

static int by_size(const void *a, const void *b) {
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return (left > right) - (left < right);
}

static double quantile_us(double part) {
    if (!seen_count) return 0;
    size_t at = (size_t)(part * seen_count);
    return seen[at < seen_count ? at : seen_count - 1] / 1e3;
}

/* --- the request ------------------------------------------------------------------------------------------------ */

static char request[1 << 17];
static size_t request_bytes;
static char *marks[8];
static int mark_count;

static void read_template(const char *path) {
    int file = open(path, O_RDONLY);
    ssize_t got = file < 0 ? -1 : read(file, request, sizeof request - 1);
    if (got <= 0 || got == sizeof request - 1) fail("%s cannot be read, or is empty or over 128 KiB", path);
    close(file);
    request_bytes = got;
    for (char *at = request; (at = memmem(at, request + request_bytes - at, MARK, MARK_BYTES)); at += MARK_BYTES) {
        if (mark_count == 8) fail("%s has more than 8 counters", path);
        marks[mark_count++] = at;
    }
}

static void count_up(void) {
    static unsigned long long count;
    char digits[MARK_BYTES + 1];
    snprintf(digits, sizeof digits, "%012llu", ++count % 1000000000000ULL);
    for (int i = 0; i < mark_count; i++) memcpy(marks[i], digits, MARK_BYTES);
}

/* --- connections ------------------------------------------------------------------------------------------------ */

struct connection {
    int fd;
    size_t have;      /* bytes in data */
    size_t whole;     /* bytes that the answer has in all; 0 while its head is not whole */
    nanoseconds due;  /* of the request in hand; 0: none */
    size_t turn;      /* streams: where it stands in the rotation */
    long left;        /* origin: chunks still to write, -1: until the peer goes */
    int streaming;    /* origin: the head was sent */
    char data[1 << 17];
};

static int poll_fd;

static void watch(int fd, void *what) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = what};
    if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event)) fail("epoll_ctl: %s", strerror(errno));
}

static void prompt(int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(fd, F_SETFL, O_NONBLOCK);
}

static struct sockaddr_in loopback(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static struct connection *connect_to(int port) {
    struct connection *made = calloc(1, sizeof *made);
    struct sockaddr_in address = loopback(port);
    if (!made || (made->fd = socket(AF_INET, SOCK_STREAM, 0)) < 0) fail("no socket: %s", strerror(errno));
    if (connect(made->fd, (struct sockaddr *)&address, sizeof address)) fail("connect: %s", strerror(errno));
    prompt(made->fd);
    watch(made->fd, made);
    return made;
}

static void ask(struct connection *of) {
    count_up();
    ssize_t sent = send(of->fd, request, request_bytes, MSG_NOSIGNAL);
    if (sent != (ssize_t)request_bytes) fail("a request could not be written: %s", sent < 0 ? strerror(errno) : "full");
}

static int timer(void *what) {
    int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    if (fd < 0) fail("timerfd_create: %s", strerror(errno));
    watch(fd, what);
    return fd;
}

static void set_timer(int fd, nanoseconds every) {
    struct itimerspec at = {.it_interval = {every / 1000000000, every % 1000000000}};
    at.it_value = at.it_interval;
    if (timerfd_settime(fd, 0, &at, NULL)) fail("timerfd_settime: %s", strerror(errno));
}

static uint64_t expired(int fd) {
    uint64_t times = 0;
    return read(fd, &times, sizeof times) == sizeof times ? times : 0;
}

/* --- requests --------------------------------------------------------------------------------------------------- */

/* Returns how long the answer is in all, 0 while its head is not whole. */
static size_t framed(const char *data, size_t have) {
    const char *end = memmem(data, have, "\r\n\r\n", 4);
    if (!end) return 0;
    if (have < 12 || memcmp(data, "HTTP/1.1 200", 12)) fail("an answer is not 200: %.80s", data);
    for (const char *line = data; line < end; line = (const char *)memchr(line, '\n', end + 2 - line) + 1) {
        if (!strncasecmp(line, "content-length:", 15)) return end + 4 - data + strtoul(line + 15, NULL, 10);
    }
    fail("an answer has no Content-Length");
}

/* Reads what came; returns 1 where it ended the answer. */
static int answered(struct connection *of) {
    ssize_t got = recv(of->fd, of->data + of->have, sizeof of->data - 1 - of->have, 0);
    if (got < 0 && errno == EAGAIN) return 0;
    if (got <= 0) fail("a connection ended: %s", got ? strerror(errno) : "closed");
    if (!of->due) fail("bytes came that nobody asked for");
    of->have += got;
    of->data[of->have] = 0;
    if (!of->whole) of->whole = framed(of->data, of->have);
    if (of->whole >= sizeof of->data - 1) fail("an answer is too long");
    if (!of->whole || of->have < of->whole) return 0;
    if (of->have > of->whole) fail("bytes came behind an answer");
    of->have = of->whole = 0;
    return 1;
}

static int told(nanoseconds units, double took, const char *also, nanoseconds count) {
    if (!units) fail("nothing came");
    qsort(seen, seen_count, sizeof *seen, by_size);
    printf("{\"units\": %llu, \"seconds\": %.6f, \"p50_us\": %.2f, \"p99_us\": %.2f, \"most_us\": %.2f, \"%s\": %llu}\n",
           units, took, quantile_us(.5), quantile_us(.99), quantile_us(1), also, count);
    return 0;
}

static int closed(int port, int connections, double seconds) {
    struct connection *first[MOST_CONNECTIONS];
    nanoseconds done = 0, start, end;
    int busy = 0;
    for (int i = 0; i < connections; i++) first[i] = connect_to(port);
    start = now_ns();
    end = start + seconds * 1e9;
    for (; busy < connections; busy++) {
        first[busy]->due = now_ns();
        ask(first[busy]);
    }
    while (busy) {
        struct epoll_event events[256];
        int count = epoll_wait(poll_fd, events, 256, 10000);
        if (count == 0) fail("no answer for 10 s");
        for (int i = 0; i < count; i++) {
            struct connection *of = events[i].data.ptr;
            if (!answered(of)) continue;
            nanoseconds at = now_ns();
            note(at - of->due);
            done++;
            of->due = 0;
            if (at < end) {
                of->due = at;
                ask(of);
            } else {
                busy--;
            }
        }
    }
    return told(done, (now_ns() - start) / 1e9, "waited", 0);
}

static int requests(int port, int connections, double rate, double seconds) {
    static struct connection *idle[MOST_CONNECTIONS]; /* a ring: each connection has its turn */
    nanoseconds every = 1e9 / rate, total = rate * seconds, warm = seconds * WARM_PART * 1e9;
    nanoseconds issued = 0, sent = 0, done = 0; /* how many became due, were sent, were answered */
    nanoseconds waited = 0;                     /* how many found no idle connection when they were due */
    int idle_count = 0, first = 0;
    for (; idle_count < connections; idle_count++) idle[idle_count] = connect_to(port);
    int tick = timer(NULL);
    nanoseconds start = now_ns();
    set_timer(tick, every);
    while (done < total) {
        struct epoll_event events[256];
        int count = epoll_wait(poll_fd, events, 256, 10000);
        if (count == 0) fail("no answer for 10 s");
        for (int i = 0; i < count; i++) {
            struct connection *of = events[i].data.ptr;
            if (!of) {
                issued += expired(tick);
                if (issued > total) issued = total;
                if (issued - sent > (nanoseconds)idle_count) waited += issued - sent - idle_count;
            } else if (answered(of)) {
                if (of->due - start > warm) note(now_ns() - of->due);
                of->due = 0;
                idle[(first + idle_count++) % connections] = of;
                done++;
            }
        }
        while (sent < issued && idle_count) {
            struct connection *of = idle[first];
            first = (first + 1) % connections;
            idle_count--;
            of->due = start + ++sent * every;
            ask(of);
        }
    }
    return told(done, (now_ns() - start) / 1e9, "waited", waited);
}

/* --- event streams: the reader ---------------------------------------------------------------------------------- */

/* Counts the whole events in what is read so far, and keeps the rest. */
static size_t events_in(struct connection *of, nanoseconds at) {
    char *from = of->data, *end = of->data + of->have, *next;
    size_t count = 0;
    while ((next = memmem(from, end - from, "data: ", 6)) && end - next >= 6 + STAMP_BYTES + 1) {
        if (next[6 + STAMP_BYTES] != ' ') fail("an event is torn: %.60s", next);
        note(at - strtoull(next + 6, NULL, 10));
        from = next + 6 + STAMP_BYTES;
        count++;
    }
    if (!next && end - from > 6) from = end - 6;
    if (next) from = next;
    of->have = end - from;
    memmove(of->data, from, of->have);
    return count;
}

static int streams(int port, int connections, double seconds) {
    nanoseconds units = 0, reads = 0;
    for (int i = 0; i < connections; i++) ask(connect_to(port));
    nanoseconds start = now_ns(), end = start + seconds * 1e9;
    while (now_ns() < end) {
        struct epoll_event events[256];
        int count = epoll_wait(poll_fd, events, 256, 2000);
        if (count == 0) fail("no event for 2 s");
        for (int i = 0; i < count; i++) {
            struct connection *of = events[i].data.ptr;
            ssize_t got = recv(of->fd, of->data + of->have, sizeof of->data - 1 - of->have, 0);
            if (got < 0 && errno == EAGAIN) continue;
            if (got <= 0) fail("a stream ended: %s", got ? strerror(errno) : "closed");
            of->have += got;
            of->data[of->have] = 0;
            if (!of->whole) {
                const char *head = memmem(of->data, of->have, "\r\n\r\n", 4);
                if (!head) continue;
                if (memcmp(of->data, "HTTP/1.1 200", 12)) fail("an answer is not 200: %.80s", of->data);
                of->whole = 1;
            }
            reads++;
            units += events_in(of, now_ns());
        }
    }
    return told(units, (now_ns() - start) / 1e9, "reads", reads);
}

/* --- event streams: the origin ---------------------------------------------------------------------------------- */

static struct connection *rotation[MOST_CONNECTIONS];
static size_t open_streams, turn;
static double stream_rate;
static int stream_tick;

static void pace(void) {
    set_timer(stream_tick, open_streams ? (nanoseconds)(1e9 / (stream_rate * open_streams)) : 0);
}

static void leave(struct connection *of) {
    of->streaming = 0;
    rotation[of->turn] = rotation[--open_streams];
    rotation[of->turn]->turn = of->turn;
    pace();
}

static void hang_up(struct connection *of) {
    if (of->streaming) leave(of);
    close(of->fd);
    free(of);
}

/* Starts the stream that a whole request asks for: endless, or as many events as ?events= says. */
static void heard(struct connection *of) {
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
                               "Transfer-Encoding: chunked\r\n\r\n";
    ssize_t got = recv(of->fd, of->data + of->have, sizeof of->data - 1 - of->have, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0 || of->streaming) {
        hang_up(of);
        return;
    }
    of->have += got;
    of->data[of->have] = 0;
    if (!memmem(of->data, of->have, "\r\n\r\n", 4)) return;
    const char *wanted = strstr(of->data, "?events=");
    of->left = wanted ? strtol(wanted + 8, NULL, 10) : -1;
    of->have = 0;
    if (open_streams == MOST_CONNECTIONS || send(of->fd, head, sizeof head - 1, MSG_NOSIGNAL) < 0) {
        close(of->fd);
        free(of);
        return;
    }
    of->streaming = 1;
    of->turn = open_streams;
    rotation[open_streams++] = of;
    pace();
}

static void write_event(struct connection *of) {
    char chunk[128], event[96];
    int bytes = snprintf(event, sizeof event, EVENT, now_ns());
    int all = snprintf(chunk, sizeof chunk, "%x\r\n%s\r\n", bytes, event);
    if (of->left > 0 && --of->left == 0) {
        memcpy(chunk + all, "0\r\n\r\n", 5);
        all += 5;
        leave(of);
    }
    /* a full socket loses this event whole; where half of one fitted, the stream could only be continued wrongly */
    ssize_t sent = send(of->fd, chunk, all, MSG_NOSIGNAL);
    if (sent >= 0 && sent < all) shutdown(of->fd, SHUT_RDWR);
}

static _Noreturn void origin(double rate, int count, char **ports) {
    static char listening, ticking;
    int listeners[16];
    if (count > 16) fail("at most 16 ports");
    stream_rate = rate;
    stream_tick = timer(&ticking);
    for (int i = 0; i < count; i++) {
        struct sockaddr_in address = loopback((int)number(ports[i], 1, 65535));
        int on = 1;
        listeners[i] = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(listeners[i], SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(listeners[i], (struct sockaddr *)&address, sizeof address) || listen(listeners[i], 4096))
            fail("port %s: %s", ports[i], strerror(errno));
        fcntl(listeners[i], F_SETFL, O_NONBLOCK);
        watch(listeners[i], &listening);
    }
    for (;;) {
        struct epoll_event events[256];
        int got = epoll_wait(poll_fd, events, 256, -1);
        uint64_t due = 0;
        for (int i = 0; i < got; i++) {
            if (events[i].data.ptr == &ticking) {
                due = expired(stream_tick);
            } else if (events[i].data.ptr == &listening) {
                for (int of = 0; of < count; of++) {
                    int fd;
                    while ((fd = accept(listeners[of], NULL, NULL)) >= 0) {
                        struct connection *made = calloc(1, sizeof *made);
                        if (!made) fail("out of memory");
                        made->fd = fd;
                        prompt(fd);
                        watch(fd, made);
                    }
                }
            } else {
                heard(events[i].data.ptr);
            }
        }
        /* after the events: a write may take a stream out of the rotation, and never frees one that is to be read */
        for (uint64_t i = 0; i < due && i < MOST_CONNECTIONS && open_streams; i++) {
            turn = (turn + 1) % open_streams;
            write_event(rotation[turn]);
        }
    }
}

int main(int count, char **values) {
    signal(SIGPIPE, SIG_IGN);
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (count == 7 && !strcmp(values[1], "requests")) {
        read_template(values[6]);
        return requests(number(values[2], 1, 65535), number(values[3], 1, MOST_CONNECTIONS),
                        number(values[4], 1, 1e6), number(values[5], .1, 600));
    }
    if (count == 6 && (!strcmp(values[1], "streams") || !strcmp(values[1], "closed"))) {
        read_template(values[5]);
        return (*values[1] == 's' ? streams : closed)(number(values[2], 1, 65535),
                                                      number(values[3], 1, MOST_CONNECTIONS), number(values[4], .1, 600));
    }
    if (count >= 4 && !strcmp(values[1], "origin")) origin(number(values[2], .1, 1e5), count - 3, values + 3);
    fail("usage: paced closed|streams PORT CONNECTIONS SECONDS TEMPLATE | "
         "requests PORT CONNECTIONS RATE SECONDS TEMPLATE | origin RATE PORT...");
}
