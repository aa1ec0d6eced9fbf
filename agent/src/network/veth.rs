//! The built-in pod network: addresses from the node's pod CIDRs, and one routed veth pair per pod.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use tokio::sync::{Mutex, Notify, watch};
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    blocking::NETWORK,
    conntrack,
    local_addresses::LocalAddresses,
    net::{Cidr, Family},
};

use super::{
    Attach, Bandwidth, NetworkConfig, NetworkError, bandwidth,
    host_ports::{UdpHostPorts, UdpPort},
    ipam::{self, AddressPool, Allocation},
    iptables,
    links::{self, Links},
};

/// How often the kernel's rules are compared with the wanted ones: another program may have flushed them.
const REPAIR_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct VethNetwork {
    config: NetworkConfig,
    state: Mutex<State>,
    in_use: watch::Sender<bool>,
    /// Wakes [`VethNetwork::keep`]: conntrack entries may be stale.
    stale_udp: Notify,
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
    changes: Changes,
}

/// What the kernel does not know yet.
#[derive(Debug, Default)]
struct Changes {
    /// UDP host ports that lead elsewhere than before, whose conntrack entries were not looked at since.
    moved: BTreeMap<Family, BTreeSet<UdpPort>>,
    /// Families whose rules could not be written when they last changed.
    unwritten: BTreeSet<Family>,
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
            stale_udp: Notify::new(),
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
        let mut changes = Changes::default();
        for pool in &pools {
            iptables::apply(pool.family(), self.chains(pool)).await?;
            // What happened before the start is not known.
            changes.moved.insert(pool.family(), UdpHostPorts::of(pool.allocations()).ports());
        }
        self.stale_udp.notify_one();
        Ok(Configured { links, pools, changes })
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
                let before = UdpHostPorts::of(pool.allocations());
                if pool.assign(*address, allocation)? || open.changes.unwritten.contains(&pool.family()) {
                    self.write_rules(pool, &before, &mut open.changes).await?;
                }
                ends.push((*address, pool.gateway()));
            }
            let links = Arc::clone(&open.links);
            self.publish_in_use(&state);
            links
        };
        links.connect(&request.pod_uid, &request.namespace, &ends).await?;
        if request.bandwidth != Bandwidth::default() {
            let interface = links::host_interface(&request.pod_uid);
            bandwidth::apply(interface, links::POD_INTERFACE, &request.namespace, request.bandwidth).await?;
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
            let before = UdpHostPorts::of(pool.allocations());
            if pool.release(pod_uid)? {
                self.write_rules(pool, &before, &mut open.changes).await?;
            }
        }
        Ok(())
    }

    fn publish_in_use(&self, state: &State) {
        let in_use =
            matches!(state, State::Configured(open) if open.pools.iter().any(|pool| pool.pods().next().is_some()));
        self.in_use.send_if_modified(|known| std::mem::replace(known, in_use) != in_use);
    }

    fn chains(&self, pool: &AddressPool) -> iptables::Chains {
        let family = pool.family();
        let cluster = self.config.cluster_cidrs.iter().find(|c| c.family() == family).copied().unwrap_or(pool.cidr());
        iptables::chains(pool.cidr(), cluster, pool.allocations())
    }

    /// Writes the rules of a pool whose host ports were `before`, and has the conntrack entries of those that lead
    /// elsewhere now looked at.
    async fn write_rules(
        &self,
        pool: &AddressPool,
        before: &UdpHostPorts,
        changes: &mut Changes,
    ) -> Result<(), NetworkError> {
        let (family, now) = (pool.family(), UdpHostPorts::of(pool.allocations()));
        changes.moved.entry(family).or_default().extend(now.changed_since(before));
        changes.unwritten.insert(family);
        iptables::apply(family, self.chains(pool)).await?;
        changes.unwritten.remove(&family);
        self.stale_udp.notify_one();
        Ok(())
    }

    /// Keeps the kernel as it should be until `shutdown`: deletes stale conntrack entries of UDP host ports, and
    /// restores rules that another program removed.
    pub(super) async fn keep(&self, shutdown: CancellationToken) {
        let mut failing = false;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.stale_udp.notified() => {}
                () = tokio::time::sleep(REPAIR_INTERVAL) => self.repair().await,
            }
            match self.delete_stale_udp().await {
                Ok(()) => failing = false,
                Err(error) if !std::mem::replace(&mut failing, true) => {
                    tracing::warn!(%error, "failed to delete stale UDP conntrack entries of host ports, clients may still send to removed pods; load the kernel module nf_conntrack_netlink; retrying");
                }
                Err(_) => {}
            }
        }
    }

    /// Writes the rules of each family anew where the kernel's differ.
    pub(super) async fn repair(&self) {
        let wanted: Vec<_> = match &*self.state.lock().await {
            State::Configured(open) => open.pools.iter().map(|pool| (pool.family(), self.chains(pool))).collect(),
            State::Unconfigured(_) => return,
        };
        for (family, chains) in wanted {
            match iptables::differences(family, chains).await {
                Ok(found) if found.is_empty() => continue,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "failed to compare the pod network's rules with the kernel's; retrying");
                    continue;
                }
            }
            // A pod may have come or gone since: only what differs while none can is another program's doing.
            let state = self.state.lock().await;
            let State::Configured(open) = &*state else { return };
            let Some(pool) = open.pools.iter().find(|pool| pool.family() == family) else { continue };
            let differing = iptables::differences(family, self.chains(pool)).await.unwrap_or_default();
            if differing.is_empty() {
                continue;
            }
            let what = differing.join(", ");
            match iptables::apply(family, self.chains(pool)).await {
                Ok(()) => tracing::warn!(what, "another program changed the pod network's rules; restored"),
                Err(error) => tracing::warn!(what, %error, "failed to restore the pod network's rules; retrying"),
            }
        }
    }

    /// Deletes the conntrack entries of UDP host ports that lead elsewhere than before.
    async fn delete_stale_udp(&self) -> Result<(), NetworkError> {
        let searches: Vec<(Family, BTreeSet<UdpPort>, UdpHostPorts)> = {
            let mut state = self.state.lock().await;
            let State::Configured(Configured { pools, changes, .. }) = &mut *state else { return Ok(()) };
            let moved = std::mem::take(&mut changes.moved).into_iter().filter(|(_, ports)| !ports.is_empty());
            let now = |family| pools.iter().find(|p| p.family() == family).map(AddressPool::allocations);
            moved
                .map(|(family, ports)| {
                    let wanted = now(family).map(UdpHostPorts::of).unwrap_or_default().only(&ports);
                    (family, ports, wanted)
                })
                .collect()
        };
        let mut all = Ok(());
        for (family, ports, wanted) in searches {
            let what = "the conntrack entries of UDP host ports could not be deleted";
            let search = move || {
                let local = LocalAddresses::of_kernel();
                conntrack::delete_stale(family, &[], |flow| wanted.is_stale(flow, &local))
                    .map_err(|e| NetworkError::new(what, e))
            };
            if let Err(error) = NETWORK.run(search, |error| NetworkError::new(what, error)).await {
                if let State::Configured(open) = &mut *self.state.lock().await {
                    open.changes.moved.entry(family).or_default().extend(ports);
                }
                all = Err(error);
            }
        }
        all
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
    for &range in ranges {
        // Where they lead there is nobody any more. A machine without conntrack has none.
        let to_a_pod =
            move |flow: &conntrack::Flow| flow.reply_src != flow.destination && range.contains(&flow.reply_src.ip());
        let deleted = move || conntrack::delete_stale(range.family(), &[], to_a_pod);
        if let Err(error) = NETWORK.run(deleted, std::io::Error::other).await {
            tracing::debug!(%range, %error, "failed to delete conntrack entries that lead to pods; they end by themselves");
        }
    }
    problems
}
