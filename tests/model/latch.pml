/*
 * The leader latch of runtime/ha, for two contenders and one failover. `python -m tests.model` checks it with SPIN.
 *
 * Names are the product's. Each inline under "Redis" is one Lua script of runtime/ha/scripts.py, so one atomic step.
 * Each step of a contender is one method of LatchState (latch.py), called by its driver (election.py). The driver
 * awaits its requests: time passes, and other processes run, between the clock, the effect and the reply.
 *
 * Time is counted in ticks. The code compares moments. The model counts down the ticks until them, so states that
 * differ only in their date are one state. A moment in the past is 0.
 *
 * There are two builds, and each check of spin.py chooses parts of one:
 *
 *   safety    Any process may stand still for any time, at any step. SIGSTOP, a slow network and a busy loop are all
 *             one: the process is not scheduled while the clock ticks. A request that was given up may take effect
 *             later, or never. SESSIONS, GRANTS and HORIZON bound sessions, grants and time: the states are finite.
 *   -DLIVE    Time passes only while no step is due, except by faults: FAULTS of them, with at most one crash and one
 *             failover. When they are used up, some contender must come to lead, and stay the leader.
 *
 * FAULT marks a planted fault that SPIN must find with -D. BEYOND marks something that is not promised, with which a
 * property fails.
 */

#ifndef LEASE
#define LEASE 6
#endif
#define MARGIN 1          /* LatchTiming.margin, rounded up to a tick */
#define RENEW_EVERY 2     /* LatchTiming.renew_every */
#define RETRY_EVERY 1     /* LatchTiming.retry_every */
#define CALL_TIMEOUT 2    /* LatchTiming.call_timeout */

#ifndef SESSIONS
#define SESSIONS 3        /* the last session: 1, 3, ... are those of contender 0, and 2, 4, ... those of contender 1 */
#endif
#ifndef HORIZON
#define HORIZON (3 * LEASE)
#endif
#ifndef PER_TICK
#define PER_TICK 8        /* epochs of one tick of a server's clock: it counts milliseconds */
#endif
/* Ticks by which the promoted server's clock is behind: less than a lease. BEYOND BEHIND: by more (-DBEHIND=99). */
#ifndef BEHIND
#define BEHIND (LEASE - MARGIN - 1)
#endif
#ifndef FAULTS
#define FAULTS 2
#endif

/* FAULT NO_MARGIN: a leader believes in its lease to the very end. */
#ifdef NO_MARGIN
#define BELIEVED LEASE
#else
#define BELIEVED (LEASE - MARGIN)
#endif

#ifdef TRACE              /* a run prints its steps, which a test repeats with the product's own classes */
#define say(...) printf(__VA_ARGS__)
#define assert(property) skip
#else
#define say(...) skip
#endif

#define FAR 254           /* a latch or a pause with it does not end by itself, as with a ttl of 255 */
#define NOTHING 0
mtype = { ACQUIRE, RENEW, RELEASE, HUNG, WRITE, COMPARED, CALL };

typedef Redis {
    byte owner;     /* the latch: the session that holds it; 0: no latch */
    byte epoch;     /* the latch: its epoch */
    byte ttl;       /* the latch: ticks until it expires */
    byte last;      /* the epoch counter */
    byte written;   /* the highest epoch whose fenced writes are in the data */
    bit fast;       /* the clock has gained MARGIN in this lease; it does so once at most */
    bit known;      /* the incarnation key has this server's run id and replication id */
    byte pause;     /* ticks until it may grant again */
}

typedef Contender {
    byte session;   /* LatchState._session; 0: all are used up */
    byte term;      /* LatchState._term: its epoch; 0: none */
    byte left;      /* ticks until LatchState._deadline */
    bit lost;       /* LatchState._lost */
    byte floor;     /* LatchState._floor */
    mtype asked;    /* the request that the driver awaits */
    bit unsent;     /* it has not left yet, though there was a failover since the clock was read */
    bit done;       /* it has taken effect; its reply is under way */
    bit granted;    /* the reply */
    byte epoch;     /* the reply */
    byte fresh;     /* ticks until the deadline that the reply will bring, counted from the sending */
#ifdef LIVE
    byte wait;      /* ticks until LatchState._next_attempt */
    bit frozen;
    bit dead;
#endif
}

typedef Straggler {
    mtype what;
    byte session;
    byte epoch;
}

Redis redis[2];     /* 0: the master; 1: its replica, which is the master after the failover */
Contender c[2];
Straggler late;     /* a request that was given up and may still take effect, or a release; a later one replaces it */
Straggler act;      /* a write or call under way, which may arrive after the end of its term; likewise */
bit promoted;
bit copied;         /* the replica has the data of one moment; what came after is forgotten by the failover */

byte seen;          /* Fences of a receiver, such as a TaskExecutor: the highest token that it has heard of */
byte seen_session;
bit descending;     /* sessions are random: the order of two is chance */

#ifdef LIVE
byte faults = FAULTS;
bit mute;           /* Redis answers nothing */
bit crashed;
#endif
#ifdef EPOCHS
byte now;
byte highest;       /* ghost: the highest epoch ever granted */
#endif
#ifdef CALLS
byte acted;         /* ghost: the highest epoch whose call a receiver has accepted */
#endif

#ifdef ACROSS_FAILOVER
byte written;       /* ghost: the highest epoch that any server has written under */
#endif

/* Results of a script; 0 between steps. */
byte granted, epoch, expires, clock;

#define leads(n) (c[n].term != 0 && !c[n].lost && c[n].left > 0)

#define held_by(m, who, nr) (redis[m].owner == who && redis[m].owner != 0 && redis[m].epoch == nr)

inline forget(straggler) {
    straggler.what = NOTHING;
    straggler.session = 0;
    straggler.epoch = 0
}

/* A straggler that compares owner and epoch is forgotten when no server can have them again: fewer states. */
inline tidy(straggler) {
#if !defined(RENEW_ANY) && !defined(RELEASE_ANY) && !defined(WRITE_UNFENCED)
    if
    :: (straggler.what == RENEW || straggler.what == RELEASE || straggler.what == WRITE) &&
       !held_by(0, straggler.session, straggler.epoch) && !held_by(1, straggler.session, straggler.epoch) ->
        forget(straggler)
    :: else
    fi
#else
    skip
#endif
}

/* ------------------------------------------------------------------------------------------------- properties */

inline check() {
    tidy(late);
    tidy(act);
    say("state %d %d %d %d %d %d %d\n", leads(0), leads(1), c[0].term, c[1].term, redis[0].owner, redis[0].epoch,
        redis[0].ttl);
#ifndef LIVE
    /* Never two leaders, by their own belief; with the failover too. */
    assert(!(leads(0) && leads(1)));
#ifndef BELIEFS_ONLY
    /* Without a failover the server agrees with the leader's belief. */
    assert(promoted || !leads(0) || (redis[0].owner == c[0].session && redis[0].epoch == c[0].term));
    assert(promoted || !leads(1) || (redis[0].owner == c[1].session && redis[0].epoch == c[1].term));
#endif
#endif
    skip
}

/* A contender leads, and receivers accept it. */
#define lower(e, s) (e < seen || (e == seen && s != seen_session && ((s < seen_session) != descending)))
#define governs(n) (leads(n) && !lower(c[n].term, c[n].session))

#ifdef LIVE
#define runs(n) (!c[n].frozen && !c[n].dead)
ltl healed { <>[] (governs(0) || governs(1)) }
#else
#define runs(n) true
#endif

#define waiting(n) (c[n].asked != NOTHING && c[n].asked != HUNG && !c[n].done)

inline forget_results() {
    granted = 0;
    epoch = 0;
    expires = 0;
    clock = 0
}

inline answered(n) {
    c[n].asked = NOTHING;
    c[n].unsent = 0;
    c[n].done = 0;
    c[n].granted = 0;
    c[n].epoch = 0;
    c[n].fresh = 0
}

/* ------------------------------------------------------------------------------------------------------- Redis */

/* ACQUIRE: sets granted, epoch and expires. */
inline acquire(m, who, above) {
    if
    :: redis[m].owner != 0 && (redis[m].owner != who || redis[m].epoch > above) ->
        granted = (redis[m].owner == who);
        epoch = redis[m].epoch;
#ifdef FULL_LEASE_AGAIN   /* FAULT FULL_LEASE_AGAIN: a repeated request is promised a whole lease */
        expires = LEASE
#else
#ifndef SET_BACK_KEPT     /* FAULT SET_BACK_KEPT: what a clock that was set back has lengthened stays so long */
#ifdef SHORTENED          /* FAULT SHORTENED: a contender with a shorter lease shortens the leader's to its own */
        redis[m].ttl = (redis[m].ttl == FAR -> 1 : redis[m].ttl);
#else
        redis[m].ttl = (redis[m].ttl == FAR -> LEASE : redis[m].ttl);
#endif
#endif
        expires = redis[m].ttl
#endif
    :: else ->
        if
        :: !redis[m].known ->
            redis[m].known = 1;
#ifndef NO_PAUSE          /* FAULT NO_PAUSE: a promoted server grants at once */
            redis[m].pause = LEASE;
            redis[m].fast = 0
#endif
#ifndef SET_BACK_KEPT
        :: redis[m].known && redis[m].pause == FAR -> redis[m].pause = LEASE
#endif
        :: else
        fi;
        if
        :: redis[m].pause > 0 ->
            granted = 0;
            epoch = 0;
            expires = redis[m].pause
#ifdef GRANTS
        :: redis[m].pause == 0 && redis[m].last >= GRANTS ->   /* the end of this search, not of the protocol */
            granted = 0
#endif
        :: else ->
            epoch = redis[m].last + 1;
#ifdef EPOCH_NOT_RAISED   /* FAULT EPOCH_NOT_RAISED: the counter is read and not incremented */
            epoch = (redis[m].last > 0 -> redis[m].last : 1);
#endif
            epoch = (epoch > above -> epoch : above + 1);
#ifdef ACROSS_FAILOVER
            epoch = (m == 1 && epoch < 100 -> 100 : epoch);   /* the clock: above all of the master */
#endif
#ifdef LIVE
            /* The promoted server's clock is far behind: epochs go back. The master's are far apart: none is repeated.
               With TIED_EPOCHS the master's clock is behind its counter too, and the replica repeats its epoch. */
#ifndef TIED_EPOCHS
            epoch = (m == 0 -> redis[0].last + 50 : epoch);
#endif
            assert(epoch > redis[m].last);
#endif
#ifdef EPOCHS
            clock = (m == 0 -> now : (now > BEHIND -> now - BEHIND : 0)) * PER_TICK;
#if !defined(EPOCH_WITHOUT_CLOCK) && !defined(EPOCH_NOT_RAISED)   /* FAULT EPOCH_WITHOUT_CLOCK: the counter alone */
            epoch = (epoch > clock -> epoch : clock);
#endif
            /* Epochs never repeat and never go back. */
            assert(epoch > highest);
            highest = (epoch > highest -> epoch : highest);
#endif
            redis[m].last = epoch;
            redis[m].owner = who;
            redis[m].epoch = epoch;
#ifdef LATCH_WITHOUT_EXPIRY   /* FAULT LATCH_WITHOUT_EXPIRY: no PEXPIRE */
            redis[m].ttl = 255;
#else
            redis[m].ttl = LEASE;
#endif
            redis[m].fast = 0;
            granted = 1;
            expires = LEASE
        fi
    fi
}

/* RENEW: sets granted. That it restores the leader's address is left out: the model has no addresses. */
inline renew(m, who, nr) {
    if
#ifdef RENEW_ANY          /* FAULT RENEW_ANY: no comparison of owner and epoch */
    :: redis[m].owner != 0 ->
#else
    :: held_by(m, who, nr) ->
#endif
        redis[m].ttl = LEASE;
        redis[m].fast = 0;
        granted = 1
    :: else -> granted = 0
    fi
}

/* RELEASE: its reply changes nothing at the contender. */
inline release(m, who, nr) {
    if
#ifdef RELEASE_ANY        /* FAULT RELEASE_ANY: no comparison of owner and epoch */
    :: redis[m].owner != 0 ->
#else
    :: held_by(m, who, nr) ->
#endif
        redis[m].owner = 0;
        redis[m].epoch = 0;
        redis[m].ttl = 0;
        redis[m].fast = 0
    :: else
    fi
}

/* FENCED_HSET and its like. */
inline fenced_write(m) {
    if
#ifdef WRITE_IN_TWO_STEPS /* FAULT WRITE_IN_TWO_STEPS: the comparison and the write are not one script */
    :: act.what == WRITE && held_by(m, act.session, act.epoch) ->
        act.what = COMPARED
    :: act.what == COMPARED ->
#else
#ifdef WRITE_UNFENCED     /* FAULT WRITE_UNFENCED: no comparison of owner and epoch */
    :: true ->
#else
    :: held_by(m, act.session, act.epoch) ->
#endif
#endif
        /* No write of a former leader takes effect after one of a higher epoch. */
        assert(act.epoch >= redis[m].written);
#ifdef ACROSS_FAILOVER    /* BEYOND ACROSS_FAILOVER: nor after one that the failover has forgotten */
        assert(act.epoch >= written);
        written = (act.epoch > written -> act.epoch : written);
#endif
        redis[m].written = act.epoch;
        say("write %d %d 1\n", act.session, act.epoch);
        forget(act)
    :: else ->
        say("write %d %d 0\n", act.session, act.epoch);
        forget(act)
    fi
}

/* The server that executes a request: the master of the moment. */
#ifdef OLD_MASTER_WRITES  /* BEYOND OLD_MASTER_WRITES: cut off, and no min-replicas-to-write */
#define MASTER(m) (m <= promoted)
#else
#define MASTER(m) (m == promoted)
#endif

/* The driver's request takes effect. */
inline execute(m, n) {
    if
    :: c[n].asked == ACQUIRE ->
        acquire(m, c[n].session, c[n].floor);
        c[n].granted = granted;
        c[n].epoch = (granted -> epoch : 0);
        /* granted(): the lease began at sent + expires_in - lease. */
        c[n].fresh = (!granted -> 0 : (c[n].fresh > LEASE - expires -> c[n].fresh - (LEASE - expires) : 0))
    :: c[n].asked == RENEW ->
        renew(m, c[n].session, c[n].term);
        c[n].granted = granted;
        c[n].fresh = (granted -> c[n].fresh : 0)
    fi;
    c[n].done = 1;
    say("execute %d %d %d %d\n", n, granted, epoch, expires);
#ifndef LIVE
    if
    :: c[n].asked == ACQUIRE && !granted -> answered(n)   /* held_by_other: to ask again, which it may at any time */
    :: else
    fi;
#endif
    forget_results();
    check()
}

/* A request whose sender has given it up takes effect. */
inline execute_late(m) {
    if
    :: late.what == ACQUIRE -> acquire(m, late.session, late.epoch)
    :: late.what == RENEW -> renew(m, late.session, late.epoch)
    :: late.what == RELEASE -> release(m, late.session, late.epoch)
    fi;
    say("late %e %d %d %d\n", late.what, late.session, late.epoch, granted);
    forget(late);
    forget_results();
    check()
}

/* A refusal carries the epoch that was seen: LeaderEndpoint.refused, LatchState.observed. */
inline refused(n) {
    if
    :: c[n].term == act.epoch && c[n].session == act.session && seen > c[n].term ->
        c[n].floor = seen;
        c[n].lost = 1
#ifndef TIE_KEPT          /* FAULT TIE_KEPT: a leader keeps an epoch that a receiver knows of another session */
    :: c[n].term == act.epoch && c[n].session == act.session && seen == c[n].term ->
        c[n].floor = seen + 1;
        c[n].lost = 1
#endif
    :: else
    fi
}

/* A receiver is called: Served.admit compares with the highest token that it has seen. */
inline arrive() {
    if
#ifndef CALL_UNFENCED     /* FAULT CALL_UNFENCED: receivers compare nothing */
    :: lower(act.epoch, act.session) ->
#ifndef REFUSAL_IGNORED   /* FAULT REFUSAL_IGNORED: a leader does not learn the epoch that was seen */
        refused(0);
        refused(1);
#endif
        skip
#endif
    :: else ->
        seen = act.epoch;
        seen_session = act.session;
#ifdef CALLS
        /* No call of a former leader is accepted after one of a higher epoch. */
        assert(act.epoch >= acted);
        acted = act.epoch
#endif
    fi;
    forget(act)
}

/* Replication is behind: the replica has what was written until some moment, or nothing at all. */
inline copy_to_replica() {
    redis[1].owner = redis[0].owner;
    redis[1].epoch = redis[0].epoch;
    redis[1].ttl = redis[0].ttl;
    redis[1].last = redis[0].last;
    redis[1].written = redis[0].written;
    redis[1].fast = redis[0].fast;
    copied = 1
}

/* A request on its way to the old master is lost. One that has not left yet can go to the new one. */
inline lose(n) {
    if
    :: waiting(n) -> answered(n)
    :: else
    fi
}

inline keep(n) {
    c[n].unsent = waiting(n)
}

/* The master is lost, or takes no writes any more (min-replicas-to-write), and the replica takes its place. */
inline fail_over() {
    promoted = 1;
    copied = 0;
#ifndef OLD_MASTER_WRITES
    if
    :: late.what != RELEASE -> forget(late)
    :: else   /* it may leave later still */
    fi;
    redis[0].owner = 0;
    redis[0].epoch = 0;
    redis[0].ttl = 0;
    redis[0].last = 0;
    redis[0].written = 0;
    redis[0].fast = 0;
    redis[0].known = 0
#endif
}

#ifdef LIVE
#define ANSWERS !mute
#define BEGUN true
#else
#define ANSWERS true
#define BEGUN (redis[0].last > 0)   /* contender 0 leads first: the contenders are alike */
#endif

proctype Server() {
    end: do
    :: d_step { ANSWERS && MASTER(0) && waiting(0) && !c[0].unsent -> execute(0, 0) }
    :: d_step { ANSWERS && MASTER(0) && waiting(1) && !c[1].unsent && BEGUN -> execute(0, 1) }
    :: d_step { ANSWERS && MASTER(1) && waiting(0) && !c[0].unsent -> execute(1, 0) }
    :: d_step { ANSWERS && MASTER(1) && waiting(1) && !c[1].unsent -> execute(1, 1) }
    :: d_step { ANSWERS && MASTER(0) && late.what != NOTHING && BEGUN -> execute_late(0) }
    :: d_step { ANSWERS && MASTER(1) && late.what != NOTHING -> execute_late(1) }
    :: d_step { MASTER(0) && (act.what == WRITE || act.what == COMPARED) -> fenced_write(0) }
    :: d_step { MASTER(1) && (act.what == WRITE || act.what == COMPARED) -> fenced_write(1) }
    :: d_step { act.what == CALL -> arrive() }
    od
}

/* -------------------------------------------------------------------------------------------------- contenders */

#ifdef LIVE
#define NOW_DUE(n) (c[n].wait == 0)
#define TIMED_OUT(n) (c[n].fresh <= BELIEVED - CALL_TIMEOUT || (c[n].asked == RENEW && c[n].left == 0))
#define hung(n) (c[n].asked == HUNG || mute)
#else
#define NOW_DUE(n) true
#define TIMED_OUT(n) true
#endif

inline send(n, what) {
    say("send %d %e\n", n, what);
    c[n].asked = what;
    c[n].fresh = BELIEVED
}

/* Waits until the next attempt; only the live build keeps time here, in the other it may come at any moment. */
inline retry_in(n, ticks) {
#ifdef LIVE
    c[n].wait = ticks
#else
    skip
#endif
}

inline call_receiver(n) {
    act.what = CALL;
    act.session = c[n].session;
    act.epoch = c[n].term
}

/* LatchState.granted, held_by_other, renewed, refused */
inline hear(n) {
    say("hear %d\n", n);
    if
    :: c[n].asked == ACQUIRE && c[n].granted && c[n].epoch > c[n].floor && c[n].fresh > 0 ->
        c[n].term = c[n].epoch;
#ifdef LEASE_FROM_REPLY   /* FAULT LEASE_FROM_REPLY: the lease is counted from the reply */
        c[n].left = BELIEVED;
#else
        c[n].left = c[n].fresh;
#endif
        retry_in(n, (BELIEVED - c[n].left < RENEW_EVERY -> RENEW_EVERY - (BELIEVED - c[n].left) : 0))
    :: c[n].asked == ACQUIRE && !(c[n].granted && c[n].epoch > c[n].floor && c[n].fresh > 0) ->
        retry_in(n, RETRY_EVERY)
    :: c[n].asked == RENEW && c[n].granted ->
#ifdef LEASE_FROM_REPLY
        c[n].left = BELIEVED;
#else
        c[n].left = c[n].fresh;
#endif
        retry_in(n, (BELIEVED - c[n].left < RENEW_EVERY -> RENEW_EVERY - (BELIEVED - c[n].left) : 0))
    :: c[n].asked == RENEW && !c[n].granted ->
        c[n].lost = 1
    fi;
    answered(n);
#ifdef LIVE
    if
    :: leads(n) -> call_receiver(n)
    :: else
    fi;
#endif
    check()
}

/* LatchState.unreachable: the driver hears nothing in time. */
inline give_up(n) {
    say("give_up %d\n", n);
    answered(n);
    retry_in(n, RETRY_EVERY)
}

/* The request that is given up has not taken effect, and may still do so. It replaces an earlier one, which is lost. */
inline leave_behind(n) {
    say("leave_behind %d\n", n);
#ifndef NO_STRAGGLERS
    late.what = c[n].asked;
    late.session = c[n].session;
    late.epoch = (c[n].asked == ACQUIRE -> c[n].floor : c[n].term)
#else
    skip
#endif
}

inline new_session(n) {
    c[n].session = (c[n].session + 2 <= SESSIONS -> c[n].session + 2 : 0);
    c[n].term = 0;
    c[n].left = 0;
    c[n].lost = 0;
    retry_in(n, RETRY_EVERY)
}

/* on_revoke, then RELEASE, then LatchState.stepped_down. */
inline send_release(n) {
    late.what = RELEASE;
    late.session = c[n].session;
    late.epoch = c[n].term
}

proctype Election(byte me) {
    end: do
    :: d_step { runs(me) && c[me].asked == NOTHING && c[me].term == 0 && c[me].session != 0 && NOW_DUE(me) ->
        send(me, ACQUIRE) }
    :: d_step { runs(me) && c[me].asked == NOTHING && leads(me) && NOW_DUE(me) ->
        send(me, RENEW) }
    /* The connection is made after the clock was read. A renewal has until the deadline. */
#ifdef RENEW_UNTIMED      /* FAULT RENEW_UNTIMED: it leaves whenever a connection is there */
    :: d_step { runs(me) && c[me].unsent ->
#else
    :: d_step { runs(me) && c[me].unsent && (c[me].asked == ACQUIRE || c[me].left > 0) ->
#endif
        c[me].unsent = 0 }
    :: d_step { runs(me) && c[me].done ->
        hear(me) }
    :: d_step { runs(me) && c[me].asked != NOTHING && TIMED_OUT(me) ->
        give_up(me) }
    :: d_step { runs(me) && waiting(me) && !c[me].unsent && TIMED_OUT(me) ->
        leave_behind(me);
        give_up(me) }
    :: d_step { runs(me) && c[me].asked == NOTHING && c[me].term != 0 && !leads(me) ->
        say("step_down %d\n", me);
        send_release(me);
        new_session(me) }
#ifndef LIVE
    /* The release is lost. */
    :: d_step { c[me].asked == NOTHING && c[me].term != 0 && !leads(me) ->
        say("step_down %d\n", me);
        new_session(me) }
    /* LatchState.abandon: the contender cannot lead, or is stopped. */
    :: d_step { leads(me) ->
        say("abandon %d\n", me);
        c[me].lost = 1 }
#ifndef TRACE             /* it is likely in a random run, and would leave no time for anything else */
    /* The process is killed, and another takes its place. */
    :: d_step { c[me].session != 0 ->
        answered(me);
        new_session(me);
        c[me].floor = 0 }
#endif
#ifdef WRITES
    /* A write may leave after the term has ended: FencedWriter asks no clock. */
    :: d_step { c[me].term != 0 ->
        act.what = WRITE;
        act.session = c[me].session;
        act.epoch = c[me].term }
#endif
#ifdef CALLS
    /* LeaderEndpoint.act: a call leaves only while the clock says that the lease runs. */
#ifdef CALL_WITHOUT_GATE  /* FAULT CALL_WITHOUT_GATE: a thawed process calls before it looks at the clock */
    :: d_step { c[me].term != 0 ->
#else
    :: d_step { leads(me) ->
#endif
        assert(!leads(1 - me));
        call_receiver(me) }
#endif
#endif
    od
}

/* -------------------------------------------------------------------------------------------------------- time */

#define down(x) x = (x > 0 -> x - 1 : 0)

inline tick_redis(m) {
    if
    :: redis[m].owner != 0 && redis[m].ttl < FAR ->
        redis[m].ttl = redis[m].ttl - 1;
        if
        :: redis[m].ttl == 0 -> redis[m].owner = 0; redis[m].epoch = 0; redis[m].fast = 0
        :: else
        fi
    :: else
    fi;
    if
    :: redis[m].pause != FAR -> down(redis[m].pause)
    :: else
    fi
}

/* The server's wall clock is set back by so much that what it waits for does not come within this search. */
inline set_back(m) {
    redis[m].ttl = (redis[m].owner != 0 && redis[m].ttl != 255 -> FAR : redis[m].ttl);
    redis[m].pause = (redis[m].pause > 0 -> FAR : 0)
}

#define measures(m) ((redis[m].owner != 0 && redis[m].ttl < FAR) || (redis[m].pause > 0 && redis[m].pause < FAR))

inline tick_contender(n) {
    down(c[n].left);
    down(c[n].fresh);
#ifdef LIVE
    down(c[n].wait)
#endif
}

inline tick() {
    tick_redis(0);
    tick_redis(1);
    tick_contender(0);
    tick_contender(1);
    check()
}

#ifdef LIVE

#define due(n) (runs(n) && (c[n].done || (c[n].asked != NOTHING && TIMED_OUT(n)) || \
    (c[n].asked == NOTHING && (c[n].wait == 0 || (c[n].term != 0 && !leads(n))))))
#define pending ((!mute && (waiting(0) || waiting(1) || late.what != NOTHING)) || act.what != NOTHING)

proctype Clock() {
    end: do
    :: d_step { !due(0) && !due(1) && !pending -> tick() }
    od
}

/* A request, or its reply, is lost. */
inline hang(n) {
    c[n].asked = HUNG;
    c[n].done = 0;
    c[n].granted = 0;
    c[n].epoch = 0
}

proctype Misfortune() {
    end: do
    :: d_step { faults > 0 && runs(0) -> faults--; c[0].frozen = 1 }
    :: d_step { faults > 0 && runs(1) -> faults--; c[1].frozen = 1 }
    :: d_step { c[0].frozen -> c[0].frozen = 0 }
    :: d_step { c[1].frozen -> c[1].frozen = 0 }
    :: d_step { faults > 0 && !mute -> faults--; mute = 1 }
    :: d_step { mute -> mute = 0 }
    :: d_step { faults > 0 && c[0].asked != NOTHING -> faults--; hang(0) }
    :: d_step { faults > 0 && c[1].asked != NOTHING -> faults--; hang(1) }
    :: d_step { faults > 0 && leads(0) -> faults--; c[0].lost = 1 }
    :: d_step { faults > 0 && leads(1) -> faults--; c[1].lost = 1 }
    :: d_step { faults > 0 && measures(promoted) -> faults--; set_back(promoted) }
    :: d_step { faults > 0 && !crashed -> faults--; crashed = 1; c[0].dead = 1; c[0].frozen = 0 }
    :: d_step { faults > 0 && !promoted && !copied -> copy_to_replica() }
    :: d_step { faults > 0 && !promoted -> faults--; lose(0); lose(1); fail_over() }
    :: d_step { faults > 0 -> faults-- }
    od
}

#else

proctype Clock() {
    end: do
#ifdef EPOCHS
    :: d_step { now < HORIZON ->
        now++;
        say("tick %d\n", now);
        tick() }
#else
    :: d_step { tick() }
#endif
#ifdef DRIFT
    /* The server's clock gains on the contenders' by at most the margin in a lease. */
    :: d_step { !redis[promoted].fast && (redis[promoted].owner != 0 || redis[promoted].pause > 0) ->
        redis[promoted].fast = 1;
        tick_redis(promoted);
        check() }
#endif
#ifdef SET_BACK
    :: d_step { measures(promoted) -> set_back(promoted) }
#endif
#ifndef NO_FAILOVER
    :: d_step { !promoted && !copied -> copy_to_replica() }
    :: d_step { !promoted -> lose(0); lose(1); fail_over() }
    :: d_step { !promoted && waiting(0) -> keep(0); lose(1); fail_over() }
    :: d_step { !promoted && waiting(1) -> lose(0); keep(1); fail_over() }
    :: d_step { !promoted && waiting(0) && waiting(1) -> keep(0); keep(1); fail_over() }
#endif
    od
}

#endif

init {
    atomic {
        redis[0].known = 1;
        c[0].session = 1;
        c[1].session = 2;
        if
        :: descending = 0
#if defined(TIED_EPOCHS) || defined(CALLS)
        :: descending = 1
#endif
        fi;
        run Server();
        run Election(0);
        run Election(1);
        run Clock();
#ifdef LIVE
        run Misfortune();
#endif
    }
}
