//! The built-in pod network: addresses from the node's pod CIDRs, and one routed veth pair per pod.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use tokio::sync::{Mutex, watch};
use windlass_kit::net::{Cidr, Family};

use super::{
    Attach, Bandwidth, NetworkConfig, NetworkError, bandwidth,
    ipam::{self, AddressPool, Allocation},
    iptables,
    links::{self, Links},
};

#[derive(Debug)]
pub(super) struct VethNetwork {
    config: NetworkConfig,
    state: Mutex<State>,
    in_use: watch::Sender<bool>,
}

#[derive(Debug)]
enum State {
    /// No pod CIDRs are known yet.
    Unconfigured(PendingReleases),
    Configured(Configured),
}

/// Pods that were detached before the allocations were read; their addresses are released once they are.
#[derive(Debug, Default)]
struct PendingReleases {
    released: BTreeSet<String>,
    /// All pods but these are to be released too.
    live: Option<BTreeSet<String>>,
}

impl PendingReleases {
    fn has(&self, pod_uid: &str) -> bool {
        self.released.contains(pod_uid) || self.live.as_ref().is_some_and(|live| !live.contains(pod_uid))
    }
}

#[derive(Debug)]
struct Configured {
    links: Arc<Links>,
    /// One pool of each family.
    pools: Vec<AddressPool>,
}

impl Configured {
    fn ranges(&self) -> Vec<Cidr> {
        self.pools.iter().map(AddressPool::cidr).collect()
    }

    fn pods(&self) -> BTreeSet<String> {
        self.pools.iter().flat_map(AddressPool::pods).map(str::to_owned).collect()
    }
}

impl VethNetwork {
    pub(super) fn new(config: NetworkConfig) -> Self {
        Self {
            config,
            state: Mutex::new(State::Unconfigured(PendingReleases::default())),
            in_use: watch::Sender::new(false),
        }
    }

    pub(super) fn in_use(&self) -> watch::Receiver<bool> {
        self.in_use.subscribe()
    }

    pub(super) async fn use_ranges(&self, ranges: &[Cidr]) -> Result<(), NetworkError> {
        let mut state = self.state.lock().await;
        let released = match &*state {
            State::Configured(open) if open.ranges() == ranges => return Ok(()),
            State::Configured(open) => {
                let pods = open.pods();
                if !pods.is_empty() {
                    return Err(NetworkError::new(
                        "the range of pods could not be changed",
                        format!("{} pods have addresses of another", pods.len()),
                    ));
                }
                for old in open.pools.iter().filter(|old| !ranges.contains(&old.cidr())) {
                    open.links.remove_gateway(old.gateway()).await?;
                    if let Some(problem) = iptables::remove(old.family()).await.into_iter().next() {
                        return Err(NetworkError::new("the rules of the former range could not be removed", problem));
                    }
                }
                PendingReleases::default()
            }
            State::Unconfigured(pending) => {
                PendingReleases { released: pending.released.clone(), live: pending.live.clone() }
            }
        };
        let open = self.open(ranges).await?;
        let stale: Vec<String> = open.pods().into_iter().filter(|uid| released.has(uid)).collect();
        *state = State::Configured(open);
        for uid in stale {
            self.release(&mut state, &uid).await?;
        }
        self.publish_in_use(&state);
        Ok(())
    }

    async fn open(&self, ranges: &[Cidr]) -> Result<Configured, NetworkError> {
        let links = Arc::new(Links::open()?);
        let mut pools = Vec::new();
        for cidr in ranges {
            enable_forwarding(cidr.family())?;
            let dir = match cidr.family() {
                Family::V4 => self.config.dir.clone(),
                Family::V6 => self.config.dir.join("v6"),
            };
            let pool = AddressPool::open(&dir, *cidr)?;
            links.add_gateway(pool.gateway()).await?;
            pools.push(pool);
        }
        for pool in &pools {
            self.write_rules(pool).await?;
        }
        Ok(Configured { links, pools })
    }

    pub(super) async fn allocate(&self, pod_uid: &str) -> Result<Vec<IpAddr>, NetworkError> {
        let mut state = self.state.lock().await;
        let State::Configured(open) = &mut *state else { return Err(no_ranges()) };
        let given = open.pools.iter_mut().map(|pool| pool.allocate(pod_uid)).collect();
        self.publish_in_use(&state);
        given
    }

    pub(super) async fn attach(&self, request: Attach) -> Result<Vec<IpAddr>, NetworkError> {
        let mut ends = Vec::new();
        let links = {
            let mut state = self.state.lock().await;
            let State::Configured(open) = &mut *state else { return Err(no_ranges()) };
            for address in &request.addresses {
                let Some(pool) = open.pools.iter_mut().find(|p| p.family() == Family::of(address)) else { continue };
                let allocation =
                    Allocation { pod_uid: request.pod_uid.clone(), host_ports: request.host_ports.clone() };
                if pool.assign(*address, allocation)? {
                    self.write_rules(pool).await?;
                }
                ends.push((*address, pool.gateway()));
            }
            let links = Arc::clone(&open.links);
            self.publish_in_use(&state);
            links
        };
        links.connect(&request.pod_uid, request.pid, &ends).await?;
        if request.bandwidth != Bandwidth::default() {
            let interface = links::host_interface(&request.pod_uid);
            bandwidth::apply(interface, links::POD_INTERFACE, request.pid, request.bandwidth).await?;
        }
        Ok(request.addresses)
    }

    pub(super) async fn detach(&self, pod_uid: &str) -> Result<(), NetworkError> {
        let mut state = self.state.lock().await;
        let links = match &mut *state {
            State::Configured(open) => Arc::clone(&open.links),
            State::Unconfigured(pending) => {
                pending.released.insert(pod_uid.to_owned());
                return Ok(());
            }
        };
        drop(state);
        links.disconnect(pod_uid).await?;
        state = self.state.lock().await;
        self.release(&mut state, pod_uid).await?;
        self.publish_in_use(&state);
        Ok(())
    }

    /// The pods other than `live` that hold addresses.
    pub(super) async fn pods_except(&self, live: &BTreeSet<String>) -> Vec<String> {
        match &mut *self.state.lock().await {
            State::Configured(open) => open.pods().into_iter().filter(|uid| !live.contains(uid)).collect(),
            State::Unconfigured(pending) => {
                pending.live = Some(live.clone());
                Vec::new()
            }
        }
    }

    async fn release(&self, state: &mut State, pod_uid: &str) -> Result<(), NetworkError> {
        let State::Configured(open) = state else { return Ok(()) };
        for pool in &mut open.pools {
            if pool.release(pod_uid)? {
                self.write_rules(pool).await?;
            }
        }
        Ok(())
    }

    fn publish_in_use(&self, state: &State) {
        let in_use =
            matches!(state, State::Configured(open) if open.pools.iter().any(|pool| pool.pods().next().is_some()));
        self.in_use.send_if_modified(|known| std::mem::replace(known, in_use) != in_use);
    }

    async fn write_rules(&self, pool: &AddressPool) -> Result<(), NetworkError> {
        let family = pool.family();
        let cluster = self.config.cluster_cidrs.iter().find(|c| c.family() == family).copied().unwrap_or(pool.cidr());
        iptables::apply(family, iptables::chains(pool.cidr(), cluster, pool.allocations())).await
    }
}

/// No pod is connected before there are ranges, unless a change of them comes in between.
fn no_ranges() -> NetworkError {
    NetworkError::new("the pod could not be given an address", "the node has no range of addresses yet")
}
/// Enables IP forwarding of the host.
fn enable_forwarding(family: Family) -> Result<(), NetworkError> {
    let file = match family {
        Family::V4 => "/proc/sys/net/ipv4/ip_forward",
        Family::V6 => "/proc/sys/net/ipv6/conf/all/forwarding",
    };
    if std::fs::read_to_string(file).is_ok_and(|v| v.trim() == "1") {
        return Ok(());
    }
    std::fs::write(file, "1").map_err(|e| NetworkError::new(format!("forwarding could not be turned on in {file}"), e))
}

/// Removes interfaces, chains and gateways; returns what could not be removed.
pub(super) async fn teardown(ranges: &[Cidr]) -> Vec<String> {
    let mut problems = Vec::new();
    match Links::open() {
        Ok(links) => {
            let gateways: Vec<IpAddr> = ranges.iter().map(ipam::gateway_of).collect();
            problems.extend(links.remove_all(&gateways).await);
        }
        Err(error) => problems.push(error.to_string()),
    }
    for family in Family::BOTH {
        problems.extend(iptables::remove(family).await);
    }
    problems
}
