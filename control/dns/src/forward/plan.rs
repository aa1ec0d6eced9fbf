//! How one question is forwarded from server to server until one answers. Each server has a turn, in which it is asked
//! twice, and may answer until the end. After the last turn, the first one follows. Pure: the time is passed in.

use std::{collections::VecDeque, net::SocketAddr, time::Duration};

use tokio::time::Instant;

use super::health::{Health, Reach};

/// How long all servers have: clients wait for five seconds.
const TIMEOUT: Duration = Duration::from_millis(4500);
/// The longest and the shortest turn of a server, before the next one is asked too.
const MAX_TURN: Duration = Duration::from_secs(1);
const MIN_TURN: Duration = Duration::from_millis(100);
/// The least time between two questions to a server that refuses packets: it may be about to start.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// So often all servers are asked when all of them refuse packets.
const MAX_REFUSED_PASSES: u32 = 3;

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Ask a server; `again` if it is the second time in its turn.
    Ask { server: SocketAddr, again: bool },
    /// Listen to all that were asked, until then.
    Wait(Instant),
    /// The turn of a server is over, and it was silent.
    Silent(SocketAddr),
    /// There will be no answer.
    GiveUp,
}

#[derive(Debug)]
struct Turn {
    server: SocketAddr,
    again_at: Option<Instant>,
    ends: Instant,
}

/// The way of one question.
#[derive(Debug)]
pub(super) struct Plan {
    servers: Vec<SocketAddr>,
    ends: Instant,
    turn: Option<Turn>,
    left: VecDeque<SocketAddr>,
    passes: u32,
    pass_began: Instant,
    /// Whether a packet was accepted by anybody in this pass.
    accepted: bool,
}

impl Plan {
    pub(super) fn new(servers: Vec<SocketAddr>, now: Instant) -> Self {
        Self {
            servers,
            ends: now + TIMEOUT,
            turn: None,
            left: VecDeque::new(),
            passes: 0,
            pass_began: now,
            accepted: false,
        }
    }

    /// When there will be no answer.
    pub(super) const fn ends(&self) -> Instant {
        self.ends
    }

    /// What to do now.
    pub(super) fn step(&mut self, health: &mut Health, now: Instant) -> Step {
        if now >= self.ends {
            return Step::GiveUp;
        }
        let Some(turn) = &mut self.turn else { return self.next_turn(health, now) };
        let server = turn.server;
        if now >= turn.ends {
            (self.turn, self.accepted) = (None, true);
            health.silent(server, now);
            return Step::Silent(server);
        }
        if turn.again_at.is_some_and(|at| at <= now) {
            turn.again_at = None;
            return Step::Ask { server, again: true };
        }
        Step::Wait(turn.again_at.unwrap_or(turn.ends).min(self.ends))
    }

    fn next_turn(&mut self, health: &Health, now: Instant) -> Step {
        if self.left.is_empty() {
            let may_go_on = self.passes == 0
                || (self.servers.iter().any(|server| health.reach(*server) != Reach::Down)
                    && (self.accepted || self.passes < MAX_REFUSED_PASSES));
            if self.servers.is_empty() || !may_go_on {
                return Step::GiveUp;
            }
            let may_begin = self.pass_began + RETRY_PAUSE;
            if self.passes > 0 && now < may_begin {
                return Step::Wait(may_begin.min(self.ends));
            }
            self.left = health.order(&self.servers, self.passes > 0).into();
            (self.pass_began, self.accepted) = (now, false);
            self.passes += 1;
        }
        // Each of those that are left has its part of the time, and there is as much left to begin again.
        let parts = u32::try_from(2 * self.left.len()).unwrap_or(u32::MAX).max(1);
        let length = ((self.ends - now) / parts).clamp(MIN_TURN, MAX_TURN);
        let Some(server) = self.left.pop_front() else { return Step::GiveUp };
        self.turn = Some(Turn { server, again_at: Some(now + length * 2 / 5), ends: now + length });
        Step::Ask { server, again: false }
    }

    /// A server cannot be asked: its machine refuses packets.
    pub(super) fn refused_packet(&mut self, health: &mut Health, server: SocketAddr, now: Instant) {
        health.silent(server, now);
        self.turn.take_if(|turn| turn.server == server);
    }

    /// A server answered that it does not answer this question. It is not asked again.
    pub(super) fn refused_question(&mut self, server: SocketAddr) {
        self.servers.retain(|other| *other != server);
        self.left.retain(|other| *other != server);
        self.turn.take_if(|turn| turn.server == server);
    }

    /// The question is asked again at once, in another form.
    pub(super) fn ask_again(&mut self, server: SocketAddr, now: Instant) {
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.server == server) {
            turn.again_at = Some(now);
        } else {
            self.left.push_front(server);
        }
    }
}
