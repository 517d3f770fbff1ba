# cython: language_level=3, binding=False, nonecheck=True, auto_pickle=False
"""The compiled core: what is done for each job, and nothing that is done once a second.

It knows bytes and states, not asyncio: it gives out bytes to write, takes bytes that were read, and
calls back. Sockets, futures' loops and time-outs belong to the Python layer over it.

1. Packing: commands to RESP, exact size, one allocation each.
2. `Wire`: the state of one connection; replies find their waiters in order.
3. `RunningSet`: entries become runs; which runs are going on, and whose time is over.
4. `SettleQueue`: the successes of one loop turn become one MULTI ... EXEC.
"""

from collections import deque
from time import monotonic

import cython
import hiredis

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.math cimport INFINITY
from libc.string cimport memcpy

cdef extern from *:
    """
    #ifdef FASTQ_DEBUG
    #define FASTQ_LIVE(counter, change) ((counter) += (change))
    #define FASTQ_DEBUG_BUILD 1
    #else
    #define FASTQ_LIVE(counter, change) ((void)0)
    #define FASTQ_DEBUG_BUILD 0
    #endif
    """
    void FASTQ_LIVE(long counter, long change) noexcept
    bint FASTQ_DEBUG_BUILD

# Counted in debug builds only: tests check that each comes back to what it was.
cdef long live_runs = 0
cdef long live_wires = 0
cdef long live_waiters = 0

DEBUG = bool(FASTQ_DEBUG_BUILD)

# Looked up once: it is compared with the type of each reply.
cdef object PushNotification = hiredis.PushNotification


def live_objects():
    """How many objects of the core exist, by kind; all 0 unless this is a debug build."""
    return {"runs": live_runs, "wires": live_wires, "waiters": live_waiters}


# States of a run. What it returns counts only while it is RUNNING.
cdef enum State:
    STATE_RUNNING = 0
    STATE_OVERDUE = 1      # its time is over and it was cancelled; its end is a time-out
    STATE_DETACHED = 2     # settled or handed back, yet still going on and holding its slot
    STATE_ENDED = 3

RUNNING = STATE_RUNNING
OVERDUE = STATE_OVERDUE
DETACHED = STATE_DETACHED
ENDED = STATE_ENDED


class ReplyError(Exception):
    """An error reply of the server. `str()` is its whole text, the code first."""


class ConnectionLost(Exception):
    """The connection ended before the reply came: the request may have been carried out."""


class NotSent(ConnectionLost):
    """The connection ended before the request was written: it has surely not been carried out."""


# --- packing -------------------------------------------------------------------------------------

cdef inline Py_ssize_t digits(Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t count = 1
    while n >= 10:
        n //= 10
        count += 1
    return count


cdef inline Py_ssize_t bulk_size(Py_ssize_t size) noexcept nogil:
    return 1 + digits(size) + 2 + size + 2


cdef inline char* put_digits(char* to, Py_ssize_t n, char end) noexcept nogil:
    cdef Py_ssize_t width = digits(n), i = width
    while i > 0:
        i -= 1
        to[i] = <char>(c'0' + n % 10)
        n //= 10
    to[width] = end
    return to + width + 1


cdef inline char* put_number(char* to, char kind, Py_ssize_t n) noexcept nogil:
    to[0] = kind
    to = put_digits(to + 1, n, c'\r')
    to[0] = c'\n'
    return to + 1


cdef inline char* put_raw(char* to, bytes data) noexcept:
    # `data` is kept alive by the caller's own reference while this copies.
    memcpy(to, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    return to + PyBytes_GET_SIZE(data)


cdef inline char* put_bulk(char* to, bytes data) noexcept:
    to = put_raw(put_number(to, c'$', PyBytes_GET_SIZE(data)), data)
    to[0] = c'\r'
    to[1] = c'\n'
    return to + 2


cdef bytes as_bytes(object part):
    if type(part) is bytes:
        return part
    if isinstance(part, str):
        return (<str>part).encode()
    if isinstance(part, int) and not isinstance(part, bool):
        return b"%d" % part
    if isinstance(part, (bytes, bytearray, memoryview)):
        return bytes(part)
    raise TypeError(f"a command takes bytes, str and int, not {type(part).__name__}")


def pack(*parts):
    """One command as RESP. Parts are bytes, str (sent as UTF-8) or int."""
    cdef list data = [as_bytes(item) for item in parts]
    cdef Py_ssize_t size = 3 + digits(len(data))
    cdef bytes part, packed
    cdef char* to
    if not data:
        raise ValueError("a command has at least its name")
    for part in data:
        size += bulk_size(PyBytes_GET_SIZE(part))
    packed = PyBytes_FromStringAndSize(NULL, size)
    to = put_number(PyBytes_AS_STRING(packed), c'*', len(data))
    for part in data:
        to = put_bulk(to, part)
    return packed


@cython.final
cdef class XaddTemplate:
    """`XADD key * f NAME [more fields] d PAYLOAD`, all packed beforehand but the payload."""

    def __cinit__(self, bytes key not None, bytes name not None, tuple more=()):
        cdef bytes whole = pack(b"XADD", key, b"*", b"f", name, *more, b"d", b"")
        # What follows the head is the payload's bulk string, here the empty one: $0 CRLF CRLF.
        self.head = whole[:PyBytes_GET_SIZE(whole) - 6]

    def pack(self, bytes payload not None):
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self.head) + bulk_size(PyBytes_GET_SIZE(payload))
        cdef bytes packed = PyBytes_FromStringAndSize(NULL, size)
        put_bulk(put_raw(PyBytes_AS_STRING(packed), self.head), payload)
        return packed


# --- replies and their waiters -------------------------------------------------------------------

cdef class Waiter:
    """Takes the replies of one request in order; told once if they will never come."""

    def __cinit__(self, *args, **kwargs):
        self.left = 1
        FASTQ_LIVE(live_waiters, 1)

    def __dealloc__(self):
        FASTQ_LIVE(live_waiters, -1)

    cdef int take(self, object reply) except -1:
        raise NotImplementedError

    cdef int lost(self, object error) except -1:
        raise NotImplementedError


@cython.final
cdef class FutureWaiter(Waiter):
    """Resolves a future: with the reply, or with the list of `count` replies.

    A single error reply becomes the future's exception; in a list, errors stand as values.
    """

    def __init__(self, future not None, Py_ssize_t count=0):
        if count < 0:
            raise ValueError("a request has at least one reply")
        self.future = future
        self.replies = None
        if count:
            self.left = count
            self.replies = []

    cdef int take(self, object reply) except -1:
        self.left -= 1
        if self.replies is not None:
            self.replies.append(reply)
            if self.left:
                return 0
            reply = self.replies
        # A cancelled caller is gone, but its reply still had to be counted off here.
        if not self.future.done():
            if isinstance(reply, ReplyError):
                self.future.set_exception(reply)
            else:
                self.future.set_result(reply)
        return 0

    cdef int lost(self, object error) except -1:
        if not self.future.done():
            if self.replies:
                error.replies = self.replies
            self.future.set_exception(error)
        return 0


@cython.final
cdef class CallbackWaiter(Waiter):
    """Calls back with the reply; an error reply or `ConnectionLost` is passed as a value."""

    def __init__(self, callback not None):
        self.callback = callback

    cdef int take(self, object reply) except -1:
        self.left = 0
        self.callback(reply)
        return 0

    cdef int lost(self, object error) except -1:
        self.callback(error)
        return 0


@cython.final
cdef class Wire:
    """The state of one connection: requests to write, replies read, waiters in between.

    `push` gets RESP3 push messages. An exception of a callback leaves `feed`; the owner then has to
    close the connection, since replies may be left unread in the parser.
    """

    def __cinit__(self, push=None):
        FASTQ_LIVE(live_wires, 1)
        self.reader = hiredis.Reader(replyError=ReplyError, notEnoughData=Ellipsis)
        self.gets = self.reader.gets
        self.fifo = deque()
        self.out = []
        self.unsent = 0
        self.push = push
        self.error = None
        self.replies = 0

    def __dealloc__(self):
        FASTQ_LIVE(live_wires, -1)

    def __len__(self):
        """How many requests have not been answered."""
        return len(self.fifo)

    @property
    def unwritten(self):
        """True if `take_output` has something to give."""
        return bool(self.out)

    def send(self, bytes packed not None, Waiter waiter not None):
        """Queues a request. On a closed wire the waiter is told at once."""
        if self.error is not None:
            waiter.lost(NotSent(str(self.error)))
            return
        self.out.append(packed)
        self.fifo.append(waiter)
        self.unsent += 1

    def take_output(self):
        """All that is to be written, as one bytes object."""
        cdef list out = self.out
        if not out:
            return b""
        self.out = []
        self.unsent = 0
        return out[0] if len(out) == 1 else b"".join(out)

    def feed(self, data):
        """Takes what the socket brought and passes each whole reply to its waiter."""
        cdef object reply
        self.reader.feed(data)
        while self.error is None:
            reply = self.gets()
            if reply is Ellipsis:
                return
            self.answer(reply)

    cdef object answer(self, object reply):
        cdef Waiter waiter
        if type(reply) is PushNotification:
            if self.push is not None:
                self.push(reply)
            return None
        if len(self.fifo) <= self.unsent:
            # A server that refuses a client says so unasked: the text is all there is to know why.
            raise hiredis.ProtocolError(f"a reply that nothing was waiting for: {reply!r:.200}")
        self.replies += 1
        waiter = <Waiter>self.fifo[0]
        if waiter.left <= 1:
            # Off the queue before it is told: a callback that closes the wire is told once.
            self.fifo.popleft()
        waiter.take(reply)

    def close(self, error not None):
        """Tells every waiter that its reply will not come. Later requests are told so at once.

        A callback that raises keeps none of the others from being told; the first error is raised
        after that.
        """
        cdef Waiter waiter
        cdef object fifo = self.fifo, failure = None
        cdef Py_ssize_t sent = len(fifo) - self.unsent
        if self.error is not None:
            return
        self.error = error
        self.fifo = deque()
        self.out = []
        self.unsent = 0
        for i, waiter in enumerate(fifo):
            try:
                waiter.lost(ConnectionLost(str(error)) if i < sent else NotSent(str(error)))
            except BaseException as raised:
                failure = raised if failure is None else failure
        if failure is not None:
            raise failure


# --- jobs that run -------------------------------------------------------------------------------

@cython.final
cdef class Keep:
    """How long a result is kept: the parts of `SET key value NX [PX ms]` that do not change."""

    def __cinit__(self, ms=None):
        if ms is not None and ms <= 0:
            raise ValueError("a result that is not kept has no Keep")
        self.ms = ms
        cdef bytes whole = pack(b"NX") if ms is None else pack(b"NX", b"PX", ms)
        self.tail = whole[4:]
        self.head = b"*4\r\n$3\r\nSET\r\n" if ms is None else b"*6\r\n$3\r\nSET\r\n"


@cython.final
cdef class Function:
    """A function that jobs may name, and how to run it."""

    def __init__(self, str name not None, call, decode, *, double timeout_s=INFINITY,
                 Keep keep=None, bint is_async=True, context=None, execute=None, enter=None):
        self.name = name
        self.call = call
        self.decode = decode
        self.timeout_s = timeout_s
        self.keep = keep
        self.is_async = is_async
        self.context = context
        self.execute = execute
        self.enter = enter


@cython.final
@cython.freelist(256)
cdef class Run:
    """One run of a job: its entry, its arguments, its deadline, its state."""

    def __cinit__(self):
        self.tries = 1
        self.deadline_s = INFINITY
        self.state = STATE_RUNNING
        FASTQ_LIVE(live_runs, 1)

    def __dealloc__(self):
        FASTQ_LIVE(live_runs, -1)

    cpdef object call(self):
        """Calls the function with the decoded arguments; for an async one, gives its coroutine."""
        cdef Function function = self.function
        cdef tuple args = self.args
        if args is None:
            raise RuntimeError("a run that could not begin has nothing to call")
        if self.id is not self.entry and function.enter is not None:
            function.enter(self)
        if function.context is not None:
            self.context = function.context(self)
            args = (self.context,) + args
        if self.kwargs is None:
            return function.call(*args)
        return function.call(*args, **self.kwargs)


cdef int read_fields(Run run, list fields) except -1:
    """Takes the fields of an entry; unknown ones, of a newer fastq, are only carried along."""
    cdef Py_ssize_t i
    cdef bytes name
    for i in range(0, len(fields) - 1, 2):
        name = fields[i]
        if name == b"f":
            run.name = fields[i + 1]
        elif name == b"d":
            run.payload = fields[i + 1]
        elif name == b"k":
            run.keep_field = fields[i + 1]
        elif name == b"o":
            run.options = fields[i + 1]
        elif name == b"t":
            run.tries_field = fields[i + 1]
        elif name == b"i":
            run.id = fields[i + 1]
        elif name == b"x":
            run.expires_field = fields[i + 1]
        elif name == b"e":
            run.enqueued_field = fields[i + 1]
        elif run.more is None:
            run.more = fields[i:i + 2]
        else:
            run.more += fields[i:i + 2]
    return 0


cdef int read_tries(bytes field) except -1:
    """Which run this is: the field counts those before it."""
    cdef long long tries = int(field)
    if not 0 <= tries < 1_000_000_000:
        raise ValueError("field t is no number of runs")
    return <int>tries + 1


class UnknownFunction(Exception):
    """No function of the entry's name is registered here."""


# A batch's starts may run jobs (eager tasks): past this the loop gets a turn in between.
cdef double START_BUDGET_S = 0.005


@cython.final
cdef class RunningSet:
    """The runs of this process.

    1. Makes runs of entries and starts them; what cannot start goes to `refuse(run, error)`.
    2. Knows how many slots are free, and which ids this process holds.
    3. Finds the runs whose time is over.

    `spawn(coroutine, name)` starts a coroutine as a task, at once or in the next loop turn.
    `configure(run)` is called for runs that carry options of their own.
    """

    def __cinit__(self, Py_ssize_t max_jobs, dict functions not None, *, spawn, refuse, configure):
        self.runs = {}
        self.functions = functions
        self.spawn = spawn
        self.refuse = refuse
        self.configure = configure
        self.waiting = []
        self.mean_payload = 0.0
        self.max_jobs = max_jobs

    def __len__(self):
        return len(self.runs)

    def __contains__(self, bytes entry_id):
        return entry_id in self.runs

    def __iter__(self):
        return iter(list(self.runs.values()))

    @property
    def free(self):
        """Slots in which nothing runs."""
        return self.max_jobs - len(self.runs)

    @property
    def waits(self):
        """True if a run is held that has not been started: `start_waiting` has to be called."""
        return bool(self.waiting)

    def start(self, list entries not None):
        """Starts the entries `[id, [field, value, ...]]` of a reply.

        Returns the ids of entries that were deleted while they waited to be delivered (their
        fields are nil): they have to be acknowledged, there is nothing to run.
        """
        cdef list deleted = []
        cdef list entry
        for entry in entries:
            if len(entry) != 2:
                raise ValueError(f"not an entry of a stream: {entry!r:.200}")
            if entry[1] is None:
                deleted.append(entry[0])
            # Read again, e.g. after a reply that seemed lost: what runs here must not run twice.
            elif entry[0] not in self.runs:
                self.waiting.append(self.admit(entry))
        self.start_waiting()
        return deleted

    def start_waiting(self):
        """Starts what is held and waits; True if some still does, so that this is called again."""
        cdef double began_s = monotonic(), now_s = began_s
        cdef list waiting = self.waiting
        cdef Py_ssize_t i = 0, count = len(waiting)
        cdef Run run = None
        self.waiting = []
        try:
            while i < count and now_s - began_s < START_BUDGET_S:
                run = <Run>waiting[i]
                i += 1
                self.begin(run, now_s)
                now_s = monotonic()
        except BaseException:
            # Nothing runs it, so it must not be held: its lease ends, as if its worker had died.
            self.remove(run)
            raise
        finally:
            if i < count:
                self.waiting = waiting[i:] + self.waiting
        return bool(self.waiting)

    cdef Run admit(self, list entry):
        cdef Run run = Run.__new__(Run)
        run.id = run.entry = entry[0]
        read_fields(run, entry[1])
        if run.payload is not None:
            # An average over about the last 64 jobs: it only has to bound what one read may bring.
            self.mean_payload += (PyBytes_GET_SIZE(run.payload) - self.mean_payload) / 64
        self.runs[run.entry] = run
        return run

    cdef int begin(self, Run run, double now_s) except -1:
        cdef object task
        if run.state != STATE_RUNNING:  # handed back before it began
            self.remove(run)
            return 0
        run.started_s = now_s
        try:
            self.prepare(run)
        except Exception as error:
            self.refuse(run, error)
            return 0
        run.deadline_s = now_s + run.limit_s
        task = self.spawn(run.function.execute(run), name=run.function.name)
        # An eager task may have ended in there.
        if run.state != STATE_ENDED:
            run.task = task
        return 0

    cdef int prepare(self, Run run) except -1:
        cdef PyObject* found = NULL
        cdef Function function = None
        if run.name is not None:
            found = PyDict_GetItem(self.functions, run.name)
        if found is not NULL:
            function = <Function?><object>found
            run.function = function
            # Before anything can be refused: that outcome is kept, too.
            run.keep = function.keep
            run.limit_s = function.timeout_s
        if run.tries_field is not None:
            run.tries = read_tries(run.tries_field)
        if function is None:
            raise UnknownFunction()
        run.args, run.kwargs = function.decode(run.payload)
        if (run.options is not None or run.keep_field is not None
                or run.expires_field is not None):
            self.configure(run)
        return 0

    def remove(self, Run run not None):
        """Frees the slot of a run."""
        # The same entry may have been read again since: that run's slot is its own.
        if self.runs.get(run.entry) is run:
            del self.runs[run.entry]
        run.state = STATE_ENDED
        run.task = run.context = None  # the task and the context refer to the run

    def overdue(self, double now_s):
        """The runs whose deadline has passed, each as often as it is asked for."""
        cdef Run run
        return [run for run in self.runs.values() if run.deadline_s <= now_s]

    def ids(self):
        """The entry ids of all runs that are not settled or handed back."""
        cdef Run run
        return [run.entry for run in self.runs.values() if run.state != STATE_DETACHED]


# --- settling ------------------------------------------------------------------------------------

@cython.final
cdef class SettleBatch(Waiter):
    """The successes of one loop turn: results, XACK and XDEL in one MULTI ... EXEC.

    A batch that is cut off in mid-write does nothing at the server, and one that is sent twice does
    nothing the second time (SET NX, XACK and XDEL of what is gone), so a batch without an answer is
    sent again. `done(batch, reply)` gets EXEC's list, the first error, or `ConnectionLost`.
    """

    def __init__(self, bytes stream not None, bytes group not None, done not None):
        self.runs = []
        self.items = []
        self.stream = stream
        self.group = group
        self.packed = None
        self.done = done
        self.first_error = None

    def __len__(self):
        return len(self.runs)

    cdef int add(self, Run run, bytes key, bytes envelope) except -1:
        self.runs.append(run)
        if run.keep is not None:
            self.items.append((run.keep, key, envelope))
        return 0

    def envelopes(self):
        """What is to be written for each run that keeps its result: id -> (ms | None, envelope)."""
        return {key: ((<Keep>keep).ms, envelope) for keep, key, envelope in self.items}

    def pack(self):
        """Packs the batch, and makes it ready to wait for its replies (again, if it was lost)."""
        self.left = len(self.items) + 4
        self.first_error = None
        if self.packed is None:
            self.packed = pack_settle(self.stream, self.group, self.runs, self.items)
        return self.packed

    cdef int take(self, object reply) except -1:
        self.left -= 1
        if self.first_error is None and isinstance(reply, ReplyError):
            self.first_error = reply
        if self.left == 0:
            self.done(self, reply if self.first_error is None else self.first_error)
        return 0

    cdef int lost(self, object error) except -1:
        self.done(self, error)
        return 0


cdef bytes MULTI = b"*1\r\n$5\r\nMULTI\r\n"
cdef bytes EXEC = b"*1\r\n$4\r\nEXEC\r\n"


cdef bytes pack_settle(bytes stream, bytes group, list runs, list items):
    cdef Py_ssize_t size, ids = 0
    cdef Run run
    cdef Keep keep
    cdef bytes key, envelope, packed, ack, delete
    cdef char* to
    # The heads of XACK and XDEL up to the first id; the argument counts are put right below.
    ack = pack(b"XACK", stream, group)[4:]
    delete = pack(b"XDEL", stream)[4:]
    for run in runs:
        if run.entry is None:
            raise ValueError("a run that no entry was read for cannot be settled")
        ids += bulk_size(PyBytes_GET_SIZE(run.entry))
    size = PyBytes_GET_SIZE(MULTI) + PyBytes_GET_SIZE(EXEC) + 2 * ids
    size += 3 + digits(3 + len(runs)) + PyBytes_GET_SIZE(ack)
    size += 3 + digits(2 + len(runs)) + PyBytes_GET_SIZE(delete)
    for keep, key, envelope in items:
        size += PyBytes_GET_SIZE(keep.head) + PyBytes_GET_SIZE(keep.tail)
        size += bulk_size(PyBytes_GET_SIZE(key)) + bulk_size(PyBytes_GET_SIZE(envelope))
    packed = PyBytes_FromStringAndSize(NULL, size)
    to = put_raw(PyBytes_AS_STRING(packed), MULTI)
    for keep, key, envelope in items:
        to = put_bulk(put_bulk(put_raw(to, keep.head), key), envelope)
        to = put_raw(to, keep.tail)
    to = put_raw(put_number(to, c'*', 3 + len(runs)), ack)
    for run in runs:
        to = put_bulk(to, run.entry)
    to = put_raw(put_number(to, c'*', 2 + len(runs)), delete)
    for run in runs:
        to = put_bulk(to, run.entry)
    put_raw(to, EXEC)
    return packed


cdef bytes envelope_of(double started_ms, double finished_ms, int tries, bytes value):
    """The stored outcome of a success; `outcome.py` has the format, and packs all others."""
    cdef Py_ssize_t started = <Py_ssize_t>started_ms, finished = <Py_ssize_t>finished_ms
    cdef Py_ssize_t size = 11 + digits(started) + 1 + digits(finished) + 1 + digits(tries) + 1
    cdef bytes packed = PyBytes_FromStringAndSize(NULL, size + PyBytes_GET_SIZE(value))
    cdef char* to = PyBytes_AS_STRING(packed)
    memcpy(to, b"complete - ", 11)
    to = put_digits(put_digits(put_digits(to + 11, started, c' '), finished, c' '), tries, c'\n')
    put_raw(to, value)
    return packed


@cython.final
cdef class SettleQueue:
    """Gathers what ends in one loop turn.

    `wake()` is called at the first end of a turn; the owner then calls `take()` once the turn is
    over. `done` is passed on to each batch. A success of a job with a record, which only a script
    may end, goes to `own(run, envelope)` instead; the envelope is None where no result is kept.
    """

    def __cinit__(self, RunningSet running not None, bytes stream not None, bytes group not None,
                  bytes result_prefix not None, *, wake, done, own):
        self.running = running
        self.batch = None
        self.stream = stream
        self.group = group
        self.result_prefix = result_prefix
        self.wake = wake
        self.done = done
        self.own = own
        self.woken = False
        self.offset_ms = 0.0

    def touch(self):
        """Asks for a call of `take` at the end of this turn: a slot was freed."""
        if not self.woken:
            self.woken = True
            self.wake()

    def complete(self, Run run not None, bytes value not None):
        """Takes a success. False, and nothing is taken, if the run's end no longer counts."""
        cdef bytes envelope = None, key = None
        if run.state != STATE_RUNNING:
            return False
        self.running.runs.pop(run.entry, None)
        run.state = STATE_ENDED
        run.task = run.context = None  # the task and the context refer to the run
        if run.keep is not None:
            envelope = envelope_of(run.started_s * 1000 + self.offset_ms,
                                   <double>monotonic() * 1000 + self.offset_ms, run.tries, value)
        if run.id is not run.entry:
            self.own(run, envelope)
        else:
            if run.keep is not None:
                key = self.result_prefix + run.id
            if self.batch is None:
                self.batch = SettleBatch(self.stream, self.group, self.done)
            self.batch.add(run, key, envelope)
        self.touch()
        return True

    def take(self):
        """The batch of this turn, or None."""
        cdef SettleBatch batch = self.batch
        self.batch = None
        self.woken = False
        return batch
