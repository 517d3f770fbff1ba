# The table of contents of the core. After each `object` stands its Python type.


cdef class Waiter:
    cdef Py_ssize_t left            # replies still to come

    cdef int take(self, object reply) except -1
    cdef int lost(self, object error) except -1


cdef class FutureWaiter(Waiter):
    cdef object future              # asyncio.Future
    cdef list replies               # None for a single reply


cdef class CallbackWaiter(Waiter):
    cdef object callback            # Callable[[object], None]


cdef class Wire:
    cdef object reader              # hiredis.Reader
    cdef object gets                # its bound method: looked up once, called for each reply
    cdef object fifo                # deque[Waiter], oldest first
    cdef list out                   # packed requests that the socket has not been given yet
    cdef Py_ssize_t unsent          # waiters at the tail of `fifo` whose requests are in `out`
    cdef object push                # Callable[[list], None] | None
    cdef readonly object error      # Exception | None: why it is closed
    cdef readonly unsigned long long replies

    cdef object answer(self, object reply)


cdef class XaddTemplate:
    cdef bytes head


cdef class Keep:
    cdef readonly object ms         # int | None: how long a result is kept; None is for ever
    cdef bytes head
    cdef bytes tail


cdef class Function:
    cdef readonly str name
    cdef readonly object call       # Callable[..., object]: the user's function
    cdef readonly object decode     # Callable[[bytes], tuple[tuple, dict | None]]
    cdef readonly double timeout_s  # inf: no limit
    cdef readonly Keep keep         # None: results are not kept
    cdef readonly bint is_async
    cdef readonly object context    # Callable[[Run], Context] | None
    cdef readonly object execute    # Callable[[Run], Coroutine]
    cdef readonly object enter      # Callable[[Run], None] | None: in a recorded job's own context


cdef class Run:
    cdef readonly bytes entry       # the id of its entry: what XACK and XDEL are told
    cdef readonly bytes id          # field `i`, else the same object as `entry`: a plain job
    cdef readonly bytes name        # None where the entry has no field `f`
    cdef readonly bytes payload     # None where the entry has no field `d`
    cdef readonly bytes options     # field `o`
    cdef readonly bytes keep_field  # field `k`
    cdef readonly bytes tries_field     # field `t`
    cdef readonly bytes expires_field   # field `x`
    cdef readonly bytes enqueued_field  # field `e`
    cdef readonly list more         # other fields and their values | None
    cdef readonly Function function
    cdef public Keep keep
    cdef public int tries
    cdef readonly tuple args
    cdef readonly dict kwargs
    cdef readonly double started_s  # monotonic
    cdef public double limit_s      # how long it may take; inf: no limit
    cdef public double deadline_s   # monotonic; inf: none
    cdef public int state
    cdef public object task         # asyncio.Task | None
    cdef public object context      # Context | None: made when the function asks for one

    cpdef object call(self)


cdef class RunningSet:
    cdef dict runs                  # dict[bytes, Run]
    cdef dict functions             # dict[bytes, Function]
    cdef object spawn               # Callable[[Coroutine, str], Task]
    cdef object refuse              # Callable[[Run, Exception], None]
    cdef object configure           # Callable[[Run], None]: a run that has options of its own
    cdef list waiting               # runs that are held, but not started yet
    cdef readonly double mean_payload
    cdef readonly Py_ssize_t max_jobs

    cdef Run admit(self, list entry)
    cdef int begin(self, Run run, double now_s) except -1
    cdef int prepare(self, Run run) except -1


cdef class SettleBatch(Waiter):
    cdef readonly list runs
    cdef list items                 # list[tuple[Keep, bytes, bytes]]: keep, result key, envelope
    cdef bytes stream
    cdef bytes group
    cdef readonly bytes packed
    cdef object done                # Callable[[SettleBatch, object], None]
    cdef object first_error         # Exception | None

    cdef int add(self, Run run, bytes key, bytes envelope) except -1


cdef class SettleQueue:
    cdef RunningSet running
    cdef SettleBatch batch
    cdef bytes stream
    cdef bytes group
    cdef bytes result_prefix
    cdef object wake                # Callable[[], None]: called once before the turn's end
    cdef object done                # see SettleBatch
    cdef object own                 # Callable[[Run, bytes | None], None]
    cdef bint woken
    cdef public double offset_ms    # monotonic ms + offset = the server's ms
