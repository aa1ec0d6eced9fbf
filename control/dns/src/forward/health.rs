//! What is known of each of the host's name servers: whether it answers over UDP and over TCP, whether it understands
//! EDNS, whether it leads back here. A server that leaves a question without an answer is suspected, and probed alongside
//! the questions until it answers; without an answer to several probes it is down, and passed over while others are
//! there. Pure: the time is given.

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use hickory_proto::rr::Name;
use tokio::time::Instant;

/// The pause between the starts of two probes of one server, which is longer than a probe takes.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Probes without an answer after which a server is down. Each is two packets, so that the loss of packets alone hardly
/// leads there; CoreDNS has two of one packet.
const MAX_SILENT_PROBES: u32 = 3;
/// For how long a server that does not answer over TCP is not asked over it.
const TCP_AVOIDED_FOR: Duration = Duration::from_secs(10);
/// How often servers are checked for a loop back to here, which may arise without a change of the file: a resolver of
/// this machine may later be configured to ask the cluster's DNS.
const LOOP_INTERVAL: Duration = Duration::from_secs(30);

/// Whether a server answers over UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    Good,
    /// A question had no answer; so many probes since then neither.
    Suspected(u32),
    Down,
}

#[derive(Debug)]
struct Server {
    reach: Reach,
    probe_at: Instant,
    /// Until then it is not asked over TCP.
    no_tcp_until: Option<Instant>,
    /// It refuses questions with EDNS.
    no_edns: bool,
    leads_here: bool,
    loop_check_at: Option<Instant>,
    /// The name of the question that is on its way to see whether it comes back, and whether it did.
    loop_check: Option<(Name, bool)>,
}

/// What is to be found out of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Check {
    /// Whether it answers.
    Answers(SocketAddr),
    /// Whether it leads back here.
    Loops(SocketAddr),
}

/// What is known of the servers.
#[derive(Debug, Default)]
pub(super) struct Health {
    servers: HashMap<SocketAddr, Server>,
}

impl Health {
    /// Forgets the servers that are not of the file any more, and takes new ones for good until it is known better.
    pub(super) fn set_servers(&mut self, servers: &[SocketAddr], now: Instant) {
        self.servers.retain(|server, _| servers.contains(server));
        for server in servers {
            self.servers.entry(*server).or_insert(Server {
                reach: Reach::Good,
                probe_at: now,
                no_tcp_until: None,
                no_edns: false,
                leads_here: false,
                loop_check_at: Some(now),
                loop_check: None,
            });
        }
    }

    pub(super) fn reach(&self, server: SocketAddr) -> Reach {
        self.servers.get(&server).map_or(Reach::Good, |known| known.reach)
    }

    /// The servers that may be asked, in the order in which they are: those that answer first. Servers that are down are
    /// among them only when `with_down`, or when there are no others.
    pub(super) fn order(&self, servers: &[SocketAddr], with_down: bool) -> Vec<SocketAddr> {
        let of = |wanted: fn(Reach) -> bool| servers.iter().copied().filter(move |server| wanted(self.reach(*server)));
        let mut order: Vec<SocketAddr> = of(|reach| reach == Reach::Good).collect();
        order.extend(of(|reach| matches!(reach, Reach::Suspected(_))));
        if with_down || order.is_empty() {
            order.extend(of(|reach| reach == Reach::Down));
        }
        order
    }

    /// Whether a server leads back here, and must not be asked.
    pub(super) fn leads_here(&self, server: SocketAddr) -> bool {
        self.servers.get(&server).is_some_and(|known| known.leads_here)
    }

    /// A server has answered, whatever it said. True if it was down.
    pub(super) fn answered(&mut self, server: SocketAddr) -> bool {
        let Some(known) = self.servers.get_mut(&server) else { return false };
        std::mem::replace(&mut known.reach, Reach::Good) == Reach::Down
    }

    /// A server left a question without an answer. It is probed from now on.
    pub(super) fn silent(&mut self, server: SocketAddr, now: Instant) {
        if let Some(known) = self.servers.get_mut(&server)
            && known.reach == Reach::Good
        {
            (known.reach, known.probe_at) = (Reach::Suspected(0), now);
        }
    }

    /// A server left a probe without an answer. True if it is down since now.
    pub(super) fn probe_silent(&mut self, server: SocketAddr) -> bool {
        let Some(known) = self.servers.get_mut(&server) else { return false };
        known.reach = match known.reach {
            Reach::Suspected(silent) if silent + 1 < MAX_SILENT_PROBES => Reach::Suspected(silent + 1),
            Reach::Suspected(_) => Reach::Down,
            // It has answered meanwhile, or is down already.
            Reach::Good | Reach::Down => return false,
        };
        known.reach == Reach::Down
    }

    /// What is to be found out now, each once, and when there will be more.
    pub(super) fn due(&mut self, now: Instant) -> (Vec<Check>, Option<Instant>) {
        let (mut due, mut next) = (Vec::new(), None::<Instant>);
        for (server, known) in &mut self.servers {
            let mut at = Vec::new();
            if known.reach != Reach::Good {
                if known.probe_at <= now {
                    known.probe_at = now + PROBE_INTERVAL;
                    due.push(Check::Answers(*server));
                }
                at.push(known.probe_at);
            }
            if let Some(check_at) = known.loop_check_at {
                if check_at <= now {
                    due.push(Check::Loops(*server));
                    let again = server.ip().is_loopback() || known.leads_here;
                    known.loop_check_at = again.then(|| now + LOOP_INTERVAL);
                }
                at.extend(known.loop_check_at);
            }
            next = next.into_iter().chain(at).min();
        }
        (due, next)
    }

    /// A loop check for `name`, which is random, is sent.
    pub(super) fn loop_check(&mut self, server: SocketAddr, name: Name) {
        if let Some(known) = self.servers.get_mut(&server) {
            known.loop_check = Some((name, false));
        }
    }

    /// A question has come here. True if it is one of those that were asked to see whether it comes back.
    pub(super) fn came_back(&mut self, name: &Name) -> bool {
        let checks = self.servers.values_mut().filter_map(|known| known.loop_check.as_mut());
        let mut found = false;
        for (_, came_back) in checks.filter(|(asked, _)| asked == name) {
            (*came_back, found) = (true, true);
        }
        found
    }

    /// The question of [`Self::loop_check`] has ended; `answered` if it had an answer. Gives whether the server leads
    /// here, if that is new.
    pub(super) fn loop_checked(&mut self, server: SocketAddr, answered: bool, now: Instant) -> Option<bool> {
        let known = self.servers.get_mut(&server)?;
        let (_, came_back) = known.loop_check.take()?;
        // Without an answer nothing is known but that it came back.
        let leads_here = came_back || (known.leads_here && !answered);
        if leads_here {
            known.loop_check_at = Some(now + LOOP_INTERVAL);
        }
        (std::mem::replace(&mut known.leads_here, leads_here) != leads_here).then_some(leads_here)
    }

    /// Whether a server may be asked over TCP. One that failed is tried again by one question at a time.
    pub(super) fn may_use_tcp(&mut self, server: SocketAddr, now: Instant) -> bool {
        let Some(until) = self.servers.get_mut(&server).and_then(|known| known.no_tcp_until.as_mut()) else {
            return true;
        };
        let may = *until <= now;
        if may {
            *until = now + TCP_AVOIDED_FOR;
        }
        may
    }

    pub(super) fn tcp(&mut self, server: SocketAddr, works: bool, now: Instant) {
        if let Some(known) = self.servers.get_mut(&server) {
            known.no_tcp_until = (!works).then(|| now + TCP_AVOIDED_FOR);
        }
    }

    /// Whether a server is asked with EDNS.
    pub(super) fn edns(&self, server: SocketAddr) -> bool {
        self.servers.get(&server).is_none_or(|known| !known.no_edns)
    }

    pub(super) fn refuses_edns(&mut self, server: SocketAddr) {
        if let Some(known) = self.servers.get_mut(&server) {
            known.no_edns = true;
        }
    }
}
