//! With one good server among any others, and any loss of packets below one half, no question is left without an answer.

use std::{net::SocketAddr, time::Duration};

use proptest::prelude::*;
use tokio::time::Instant;

use crate::forward::{
    health::{Check, Health},
    plan::{Plan, Step},
};

/// What a server does with packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It answers after a time, in milliseconds.
    Good(u64),
    Silent,
    RefusesPackets,
    RefusesQuestions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Answer,
    PacketRefused,
    QuestionRefused,
    ProbeSilent,
    ProbeAnswered,
}

/// The network: which packets to a good server, or its answers, are lost.
struct Loss {
    pattern: Vec<bool>,
    sent: usize,
    recent: Vec<bool>,
}

impl Loss {
    /// Of eight packets in a row no more than three are lost.
    fn is_lost(&mut self) -> bool {
        let wanted = self.pattern[self.sent % self.pattern.len()];
        self.sent += 1;
        let lost = wanted && self.recent.iter().rev().take(7).filter(|lost| **lost).count() < 3;
        self.recent.push(lost);
        lost
    }
}

struct Network {
    now: Instant,
    servers: Vec<(SocketAddr, Kind)>,
    health: Health,
    loss: Loss,
    events: Vec<(Instant, SocketAddr, Event)>,
}

impl Network {
    fn send(&mut self, server: SocketAddr) {
        let kind = self.servers.iter().find(|(at, _)| *at == server).unwrap().1;
        let (after, event) = match kind {
            Kind::Silent => return,
            Kind::Good(_) if self.loss.is_lost() => return,
            Kind::Good(millis) => (millis, Event::Answer),
            Kind::RefusesPackets => (1, Event::PacketRefused),
            Kind::RefusesQuestions => (5, Event::QuestionRefused),
        };
        self.events.push((self.now + Duration::from_millis(after), server, event));
    }

    /// A probe is two packets.
    fn probe(&mut self, server: SocketAddr) {
        let kind = self.servers.iter().find(|(at, _)| *at == server).unwrap().1;
        let (after, event) = match kind {
            Kind::Good(millis) if !self.loss.is_lost() => (millis, Event::ProbeAnswered),
            Kind::Good(millis) if !self.loss.is_lost() => (300 + millis, Event::ProbeAnswered),
            Kind::RefusesQuestions => (5, Event::ProbeAnswered),
            Kind::RefusesPackets => (1, Event::ProbeSilent),
            Kind::Good(_) | Kind::Silent => (900, Event::ProbeSilent),
        };
        self.events.push((self.now + Duration::from_millis(after), server, event));
    }

    /// Goes on to the next thing that happens until `until`, and gives what happened to questions.
    fn pass(&mut self, until: Instant) -> Option<(SocketAddr, Event)> {
        loop {
            let (due, next) = self.health.due(self.now);
            for check in due {
                if let Check::Answers(server) = check {
                    self.probe(server);
                }
            }
            self.events.sort_by_key(|(at, ..)| *at);
            let first = self.events.first().map(|(at, ..)| *at);
            let at = first.into_iter().chain(next).chain([until]).min().unwrap();
            self.now = self.now.max(at);
            if first != Some(at) {
                if at == until {
                    return None;
                }
                continue;
            }
            match self.events.remove(0) {
                (_, server, Event::ProbeSilent) => {
                    self.health.probe_silent(server);
                }
                (_, server, Event::ProbeAnswered) => {
                    self.health.answered(server);
                }
                (_, server, event) => return Some((server, event)),
            }
        }
    }

    /// Asks one question; false if it has no answer.
    fn ask(&mut self) -> bool {
        self.events.retain(|(_, _, event)| matches!(event, Event::ProbeSilent | Event::ProbeAnswered));
        let mut plan = Plan::new(self.servers.iter().map(|(at, _)| *at).collect(), self.now);
        loop {
            match plan.step(&mut self.health, self.now) {
                Step::Ask { server, .. } => self.send(server),
                Step::Silent(_) => {}
                Step::GiveUp => return false,
                Step::Wait(until) => match self.pass(until) {
                    None => {}
                    Some((server, Event::PacketRefused)) => plan.refused_packet(&mut self.health, server, self.now),
                    Some((server, Event::QuestionRefused)) => {
                        self.health.answered(server);
                        plan.refused_question(server);
                    }
                    Some((server, _)) => {
                        self.health.answered(server);
                        return true;
                    }
                },
            }
        }
    }
}

proptest! {
    #[test]
    fn with_one_good_server_every_question_has_an_answer(
        others in proptest::collection::vec(0..3_usize, 0..5),
        good_at in 0..5_usize,
        millis in 1..250_u64,
        pattern in proptest::collection::vec(any::<bool>(), 64),
        pauses in proptest::collection::vec(0..6000_u64, 20),
    ) {
        let kinds = [Kind::Silent, Kind::RefusesPackets, Kind::RefusesQuestions];
        let mut kinds: Vec<Kind> = others.into_iter().map(|kind| kinds[kind]).collect();
        kinds.insert(good_at.min(kinds.len()), Kind::Good(millis));
        let address = |n: usize| SocketAddr::from(([192, 0, 2, u8::try_from(n).unwrap()], 53));
        let servers: Vec<(SocketAddr, Kind)> =
            kinds.into_iter().enumerate().map(|(n, kind)| (address(n), kind)).collect();
        let now = Instant::now();
        let mut health = Health::default();
        health.set_servers(&servers.iter().map(|(at, _)| *at).collect::<Vec<_>>(), now);
        let loss = Loss { pattern, sent: 0, recent: Vec::new() };
        let mut network = Network { now, servers, health, loss, events: Vec::new() };
        for (n, pause) in pauses.into_iter().enumerate() {
            prop_assert!(network.ask(), "question {} has no answer", n);
            let until = network.now + Duration::from_millis(pause);
            while network.pass(until).is_some() {}
        }
    }
}
