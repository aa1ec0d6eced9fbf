//! Our own network: addresses from the node's ranges, one routed pair per pod.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use tokio::sync::{Mutex, watch};
use windlass_kit::net::{Cidr, Family};

use super::{
    Attach, Bandwidth, NetworkConfig, NetworkError,
    addresses::{self, Addresses, Holder},
    bandwidth,
    links::{self, Links},
    rules,
};

#[derive(Debug)]
pub(super) struct Routed {
    config: NetworkConfig,
    state: Mutex<State>,
    holds: watch::Sender<bool>,
}

#[derive(Debug)]
enum State {
    /// There are no ranges yet.
    Closed(Leavers),
    Open(Open),
}

/// Who has left before it is known which address it held.
#[derive(Debug, Default)]
struct Leavers {
    gone: BTreeSet<String>,
    /// Others than these are gone too.
    live: Option<BTreeSet<String>>,
}

impl Leavers {
    fn has(&self, pod_uid: &str) -> bool {
        self.gone.contains(pod_uid) || self.live.as_ref().is_some_and(|live| !live.contains(pod_uid))
    }
}

#[derive(Debug)]
struct Open {
    links: Arc<Links>,
    /// One of each family.
    pools: Vec<Addresses>,
}

impl Open {
    fn ranges(&self) -> Vec<Cidr> {
        self.pools.iter().map(Addresses::cidr).collect()
    }

    fn pods(&self) -> BTreeSet<String> {
        self.pools.iter().flat_map(Addresses::pods).map(str::to_owned).collect()
    }
}

impl Routed {
    pub(super) fn new(config: NetworkConfig) -> Self {
        Self { config, state: Mutex::new(State::Closed(Leavers::default())), holds: watch::Sender::new(false) }
    }

    pub(super) fn holds(&self) -> watch::Receiver<bool> {
        self.holds.subscribe()
    }

    pub(super) async fn use_ranges(&self, ranges: &[Cidr]) -> Result<(), NetworkError> {
        let mut state = self.state.lock().await;
        let gone = match &*state {
            State::Open(open) if open.ranges() == ranges => return Ok(()),
            State::Open(open) => {
                let pods = open.pods();
                if !pods.is_empty() {
                    return Err(NetworkError::new(
                        "the range of pods could not be changed",
                        format!("{} pods have addresses of another", pods.len()),
                    ));
                }
                for old in open.pools.iter().filter(|old| !ranges.contains(&old.cidr())) {
                    open.links.take_gateway(old.gateway()).await?;
                    if let Some(problem) = rules::remove(old.family()).await.into_iter().next() {
                        return Err(NetworkError::new("the rules of the range before could not be removed", problem));
                    }
                }
                Leavers::default()
            }
            State::Closed(leavers) => Leavers { gone: leavers.gone.clone(), live: leavers.live.clone() },
        };
        let open = self.open(ranges).await?;
        let left: Vec<String> = open.pods().into_iter().filter(|uid| gone.has(uid)).collect();
        *state = State::Open(open);
        for uid in left {
            self.release(&mut state, &uid).await?;
        }
        self.tell(&state);
        Ok(())
    }

    async fn open(&self, ranges: &[Cidr]) -> Result<Open, NetworkError> {
        let links = Arc::new(Links::open()?);
        let mut pools = Vec::new();
        for cidr in ranges {
            forward(cidr.family())?;
            let dir = match cidr.family() {
                Family::V4 => self.config.dir.clone(),
                Family::V6 => self.config.dir.join("v6"),
            };
            let pool = Addresses::open(&dir, *cidr)?;
            links.put_gateway(pool.gateway()).await?;
            pools.push(pool);
        }
        for pool in &pools {
            self.write_rules(pool).await?;
        }
        Ok(Open { links, pools })
    }

    pub(super) async fn allocate(&self, pod_uid: &str) -> Result<Vec<IpAddr>, NetworkError> {
        let mut state = self.state.lock().await;
        let State::Open(open) = &mut *state else { return Err(closed()) };
        let given = open.pools.iter_mut().map(|pool| pool.allocate(pod_uid)).collect();
        self.tell(&state);
        given
    }

    pub(super) async fn attach(&self, request: Attach) -> Result<Vec<IpAddr>, NetworkError> {
        let mut ends = Vec::new();
        let links = {
            let mut state = self.state.lock().await;
            let State::Open(open) = &mut *state else { return Err(closed()) };
            for address in &request.addresses {
                let Some(pool) = open.pools.iter_mut().find(|p| p.family() == Family::of(address)) else { continue };
                let holder = Holder { pod_uid: request.pod_uid.clone(), host_ports: request.host_ports.clone() };
                if pool.hold(*address, holder)? {
                    self.write_rules(pool).await?;
                }
                ends.push((*address, pool.gateway()));
            }
            let links = Arc::clone(&open.links);
            self.tell(&state);
            links
        };
        links.connect(&request.pod_uid, request.pid, &ends).await?;
        if request.bandwidth != Bandwidth::default() {
            let interface = links::interface_of(&request.pod_uid);
            bandwidth::hold(interface, links::POD_INTERFACE, request.pid, request.bandwidth).await?;
        }
        Ok(request.addresses)
    }

    pub(super) async fn detach(&self, pod_uid: &str) -> Result<(), NetworkError> {
        let mut state = self.state.lock().await;
        let links = match &mut *state {
            State::Open(open) => Arc::clone(&open.links),
            State::Closed(leavers) => {
                leavers.gone.insert(pod_uid.to_owned());
                return Ok(());
            }
        };
        drop(state);
        links.disconnect(pod_uid).await?;
        state = self.state.lock().await;
        self.release(&mut state, pod_uid).await?;
        self.tell(&state);
        Ok(())
    }

    /// Frees what pods other than these hold; gives whom it must be taken from.
    pub(super) async fn others(&self, live: &BTreeSet<String>) -> Vec<String> {
        match &mut *self.state.lock().await {
            State::Open(open) => open.pods().into_iter().filter(|uid| !live.contains(uid)).collect(),
            State::Closed(leavers) => {
                leavers.live = Some(live.clone());
                Vec::new()
            }
        }
    }

    async fn release(&self, state: &mut State, pod_uid: &str) -> Result<(), NetworkError> {
        let State::Open(open) = state else { return Ok(()) };
        for pool in &mut open.pools {
            if pool.release(pod_uid)? {
                self.write_rules(pool).await?;
            }
        }
        Ok(())
    }

    fn tell(&self, state: &State) {
        let hold = matches!(state, State::Open(open) if open.pools.iter().any(|pool| pool.pods().next().is_some()));
        self.holds.send_if_modified(|known| std::mem::replace(known, hold) != hold);
    }

    async fn write_rules(&self, pool: &Addresses) -> Result<(), NetworkError> {
        let family = pool.family();
        let cluster = self.config.cluster_cidrs.iter().find(|c| c.family() == family).copied().unwrap_or(pool.cidr());
        rules::apply(family, rules::chains(pool.cidr(), cluster, pool.holders())).await
    }
}

/// No pod asks before there are ranges, but for one that a change of them has overtaken.
fn closed() -> NetworkError {
    NetworkError::new("the pod could not be given an address", "the node has no range of addresses yet")
}
/// Lets the host pass packets on.
fn forward(family: Family) -> Result<(), NetworkError> {
    let file = match family {
        Family::V4 => "/proc/sys/net/ipv4/ip_forward",
        Family::V6 => "/proc/sys/net/ipv6/conf/all/forwarding",
    };
    if std::fs::read_to_string(file).is_ok_and(|v| v.trim() == "1") {
        return Ok(());
    }
    std::fs::write(file, "1").map_err(|e| NetworkError::new(format!("forwarding could not be turned on in {file}"), e))
}

/// Takes interfaces, chains and gateways away; gives what stayed.
pub(super) async fn teardown(ranges: &[Cidr]) -> Vec<String> {
    let mut problems = Vec::new();
    match Links::open() {
        Ok(links) => {
            let gateways: Vec<IpAddr> = ranges.iter().map(addresses::gateway_of).collect();
            problems.extend(links.remove_all(&gateways).await);
        }
        Err(error) => problems.push(error.to_string()),
    }
    for family in Family::BOTH {
        problems.extend(rules::remove(family).await);
    }
    problems
}
