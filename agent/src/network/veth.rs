//! The built-in pod network: addresses from the node's pod CIDRs, and one routed veth pair per pod.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{Mutex, Notify, watch},
    time::MissedTickBehavior,
};
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    announced_pod::{AnnouncedPod, Announcer},
    blocking::NETWORK,
    conntrack,
    local_addresses::LocalAddresses,
    net::{Cidr, Family},
    repairs::Repair,
};

use super::{
    Attach, HostPort, NetworkConfig, NetworkError, bandwidth,
    ipam::{self, AddressPool, Allocation, Allocations},
    iptables::{self, Rules},
    kernel_rules::{CHECK_INTERVAL, KernelRules},
    links::Links,
};
use crate::known::Known;

/// How long a pod waits for its rules before its start is tried again.
const POLICIES_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct VethNetwork {
    config: NetworkConfig,
    announcer: Option<Announcer>,
    state: Mutex<State>,
    /// Locked for writing or comparing rules, before the state: what needs no rules does not wait for iptables.
    rules: Mutex<KernelRules>,
    in_use: watch::Sender<Known<BTreeSet<Cidr>>>,
    /// Wakes [`VethNetwork::keep`]: conntrack entries may be stale.
    stale_udp: Notify,
}

#[derive(Debug, Default)]
struct State {
    links: Option<Arc<Links>>,
    /// Which pods have which addresses, of whatever range; `None` until that could be read.
    allocations: Option<Allocations>,
    /// One of each family at most; none before pod CIDRs are known.
    pools: Vec<AddressPool>,
    /// The ranges whose gateways may be on the host.
    on_host: BTreeSet<Cidr>,
    /// Pods that this process has given their addresses, whether they are connected yet or not.
    given: BTreeSet<String>,
}

impl State {
    fn links(&mut self) -> Result<Arc<Links>, NetworkError> {
        if let Some(links) = &self.links {
            return Ok(Arc::clone(links));
        }
        let links = Arc::new(Links::open()?);
        self.links = Some(Arc::clone(&links));
        Ok(links)
    }

    fn allocations(&mut self, config: &NetworkConfig) -> Result<&mut Allocations, NetworkError> {
        match &mut self.allocations {
            Some(known) => Ok(known),
            unknown => Ok(unknown.insert(Allocations::open(&config.dir)?)),
        }
    }

    fn ranges(&self) -> Vec<Cidr> {
        self.pools.iter().map(AddressPool::cidr).collect()
    }

    /// The pool of an address, or at least of its family.
    fn pool_of(&self, address: &IpAddr) -> Option<&AddressPool> {
        self.pools.iter().find(|pool| pool.family() == Family::of(address))
    }
}

/// An address that is claimed for a pod, with the host ports that led to it before.
type Claim = (IpAddr, Allocation, Vec<HostPort>);

impl VethNetwork {
    pub(super) fn new(config: NetworkConfig, announcer: Option<Announcer>) -> Self {
        Self {
            config,
            announcer,
            state: Mutex::default(),
            rules: Mutex::default(),
            in_use: watch::Sender::new(Known::Unknown("the addresses of pods were not read yet".to_owned())),
            stale_udp: Notify::new(),
        }
    }

    pub(super) fn ranges_in_use(&self) -> watch::Receiver<Known<BTreeSet<Cidr>>> {
        self.in_use.subscribe()
    }

    /// Reads which pods have addresses, unless that is known.
    pub(super) async fn read_addresses(&self) {
        let mut state = self.state.lock().await;
        let read = state.allocations(&self.config).map(|known| known.ranges());
        self.publish(read.into());
    }

    pub(super) async fn use_ranges(&self, ranges: &[Cidr]) -> Result<(), NetworkError> {
        {
            let mut state = self.state.lock().await;
            if state.ranges() != ranges {
                self.change_ranges(&mut state, ranges).await?;
            }
            self.publish_in_use(&state);
        }
        self.write_rules().await?;
        self.remove_former_gateways().await
    }

    async fn change_ranges(&self, state: &mut State, ranges: &[Cidr]) -> Result<(), NetworkError> {
        let used = state.allocations(&self.config)?.ranges();
        let foreign: Vec<String> = foreign_ranges(&used, ranges).map(|range| range.to_string()).collect();
        if !foreign.is_empty() {
            return Err(NetworkError::new(
                "the range of pods could not be changed",
                format!("pods have addresses of {}", foreign.join(", ")),
            ));
        }
        let links = state.links()?;
        for cidr in ranges {
            if cidr.family() == Family::V6 {
                links.keep_advertised_routes().await?;
            }
            enable_forwarding(cidr.family())?;
            state.on_host.insert(*cidr);
            links.add_gateway(ipam::gateway_of(cidr)).await?;
        }
        let allocations = state.allocations(&self.config)?;
        let pools = ranges.iter().map(|cidr| AddressPool::new(*cidr, allocations)).collect();
        state.pools = pools;
        Ok(())
    }

    /// Takes the gateways of former ranges off the host.
    async fn remove_former_gateways(&self) -> Result<(), NetworkError> {
        let mut state = self.state.lock().await;
        let ranges = state.ranges();
        let former: Vec<Cidr> = state.on_host.iter().filter(|range| !ranges.contains(range)).copied().collect();
        for range in former {
            let gateway = ipam::gateway_of(&range);
            if !ranges.iter().any(|own| ipam::gateway_of(own) == gateway) {
                state.links()?.remove_gateway(gateway).await?;
            }
            state.on_host.remove(&range);
        }
        Ok(())
    }

    pub(super) async fn allocate(&self, pod_uid: &str) -> Result<Vec<IpAddr>, NetworkError> {
        let mut state = self.state.lock().await;
        let State { pools, allocations: Some(allocations), .. } = &mut *state else { return Err(no_ranges()) };
        if pools.is_empty() {
            return Err(no_ranges());
        }
        let addresses = pools.iter_mut().map(|pool| pool.allocate(allocations, pod_uid)).collect();
        state.given.insert(pod_uid.to_owned());
        self.publish_in_use(&state);
        addresses
    }

    pub(super) async fn attach(&self, request: Attach) -> Result<Vec<IpAddr>, NetworkError> {
        let (links, ends) = {
            let mut state = self.state.lock().await;
            if state.pools.is_empty() {
                return Err(no_ranges());
            }
            let with_gateway = |address: &IpAddr| Some((*address, state.pool_of(address)?.gateway()));
            let ends: Vec<(IpAddr, IpAddr)> = request.addresses.iter().filter_map(with_gateway).collect();
            (state.links()?, ends)
        };
        self.open_host_ports(&request).await?;
        self.await_policies(&links, &request).await?;
        links.connect(&request.pod_uid, &request.namespace, &ends, !request.host_ports.is_empty()).await?;
        bandwidth::apply(&links, &request.pod_uid, request.bandwidth).await?;
        Ok(request.addresses)
    }

    /// Waits until the rules of NetworkPolicies are in force for a pod that has no link yet. One that has got its link by an
    /// earlier attempt, or an earlier process, had its rules before.
    async fn await_policies(&self, links: &Links, request: &Attach) -> Result<(), NetworkError> {
        let Some(announcer) = &self.announcer else { return Ok(()) };
        let has_link = links.leads_to(&request.pod_uid).await?;
        let in_force = announcer.starts(AnnouncedPod {
            namespace: request.pod_namespace.clone(),
            name: request.pod_name.clone(),
            uid: request.pod_uid.clone(),
            labels: request.labels.clone(),
            ports: request.named_ports.clone(),
            addresses: request.addresses.clone(),
        });
        if has_link {
            return Ok(());
        }
        let answer = tokio::time::timeout(POLICIES_TIMEOUT, in_force).await.unwrap_or_else(|_| {
            Err(format!(
                "they were not written within {} s; the API may be unreachable, or forbid the proxy to list policies",
                POLICIES_TIMEOUT.as_secs()
            ))
        });
        answer.map_err(|why| NetworkError::new("the rules of NetworkPolicies are not in force for the pod", why))
    }

    /// Assigns the pod its addresses, and its host ports to them. Host ports are recorded together with their rules, so
    /// that a port whose rules cannot be written blocks no other pod.
    async fn open_host_ports(&self, request: &Attach) -> Result<(), NetworkError> {
        let mut claims = Vec::new();
        let claimed = self.claim(request, &mut claims).await;
        let written = match claimed {
            Ok(()) => self.write_rules().await,
            Err(error) => Err(error),
        };
        let mut state = self.state.lock().await;
        let Some(allocations) = &mut state.allocations else { return Err(no_ranges()) };
        let mut saved = Ok(());
        for (address, allocation, before) in claims {
            if written.is_err() {
                allocations.claim(address, Allocation { host_ports: before, ..allocation })?;
            }
            saved = saved.and(allocations.save(address));
        }
        self.publish_in_use(&state);
        written.and(saved)
    }

    async fn claim(&self, request: &Attach, claims: &mut Vec<Claim>) -> Result<(), NetworkError> {
        let mut state = self.state.lock().await;
        let (uid, host_ports) = (&request.pod_uid, &request.host_ports);
        state.given.insert(uid.clone());
        for address in &request.addresses {
            let Some(pool) = state.pool_of(address) else { continue };
            let of_range = pool.cidr().contains(address);
            let mut allocation = pool.allocation(uid, host_ports.clone());
            if !of_range {
                allocation.range = None;
            }
            let before = state.allocations(&self.config)?.claim(*address, allocation.clone())?;
            claims.push((*address, allocation, before.map(|before| before.host_ports).unwrap_or_default()));
        }
        Ok(())
    }

    pub(super) async fn detach(&self, pod_uid: &str) -> Result<(), NetworkError> {
        let links = self.state.lock().await.links()?;
        links.disconnect(pod_uid).await?;
        self.announcer.iter().for_each(|announcer| announcer.ended(pod_uid));
        self.state.lock().await.allocations(&self.config)?.close_host_ports(pod_uid);
        // Its addresses are not reused before the rules that lead to them are removed.
        self.write_rules().await?;
        let mut state = self.state.lock().await;
        let released = state.allocations(&self.config)?.release(pod_uid);
        state.given.remove(pod_uid);
        self.publish_in_use(&state);
        released
    }

    /// Frees addresses outside of these ranges that no interface has any more: those of pods whose sandboxes ended with
    /// an earlier process, such as when this machine left its cluster. The pods may still exist, waiting for new
    /// addresses.
    pub(super) async fn free_unused(&self, ranges: &[Cidr]) -> Result<(), NetworkError> {
        let (links, pods) = {
            let mut state = self.state.lock().await;
            let pods = state.allocations(&self.config)?.pods_outside(ranges);
            (state.links()?, pods.difference(&state.given).cloned().collect::<Vec<_>>())
        };
        for uid in pods {
            if !links.leads_to(&uid).await? {
                self.detach(&uid).await?;
                tracing::info!(pod = uid, "freed the addresses of a sandbox that has ended");
            }
        }
        Ok(())
    }

    /// The pods other than `live` that hold addresses.
    pub(super) async fn pods_except(&self, live: &BTreeSet<String>) -> Result<Vec<String>, NetworkError> {
        let mut state = self.state.lock().await;
        let pods = state.allocations(&self.config)?.pods();
        Ok(pods.into_iter().filter(|uid| !live.contains(uid)).collect())
    }

    fn publish_in_use(&self, state: &State) {
        if let Some(allocations) = &state.allocations {
            self.publish(Known::Is(allocations.ranges()));
        }
    }

    fn publish(&self, in_use: Known<BTreeSet<Cidr>>) {
        self.in_use.send_if_modified(|known| std::mem::replace(known, in_use.clone()) != in_use);
    }

    async fn wanted_rules(&self) -> BTreeMap<Family, Rules> {
        let state = self.state.lock().await;
        let rules = |pool: &AddressPool| {
            let (family, pods) = (pool.family(), pool.cidr());
            let cluster = self.config.cluster_cidrs.iter().find(|c| c.family() == family).copied().unwrap_or(pods);
            let host_ports = state.allocations.as_ref().map(|all| all.host_ports(family)).unwrap_or_default();
            (family, Rules { pods, cluster, host_ports })
        };
        state.pools.iter().map(rules).collect()
    }

    /// Writes what is wanted at the time and is not in the kernel.
    async fn write_rules(&self) -> Result<(), NetworkError> {
        let mut rules = self.rules.lock().await;
        rules.want(self.wanted_rules().await);
        let pending = rules.is_pending();
        let written = rules.write().await;
        if pending {
            self.stale_udp.notify_one();
        }
        written
    }

    /// Keeps the kernel as it should be until `shutdown`: deletes stale conntrack entries of UDP host ports, and
    /// restores rules that another program removed.
    pub(super) async fn keep(&self, shutdown: CancellationToken) {
        let mut checks = tokio::time::interval(Repair::PodNetworkCheck.period(CHECK_INTERVAL));
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut rules, mut connections) = (Problem::default(), Problem::default());
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.stale_udp.notified() => {}
                _ = checks.tick() => {
                    if let Some(error) = rules.news(self.repair().await) {
                        tracing::warn!(%error, "failed to keep the pod network as it should be; retrying");
                    }
                }
            }
            if let Some(error) = connections.news(self.delete_stale_udp().await) {
                tracing::warn!(%error, "failed to delete stale UDP conntrack entries of host ports, clients may still send to removed pods; load the kernel module nf_conntrack_netlink; retrying");
            }
        }
    }

    /// Writes the rules again where the kernel's differ, and what could not be done before.
    pub(super) async fn repair(&self) -> Result<(), NetworkError> {
        let ranges = self.state.lock().await.ranges();
        ranges.iter().try_for_each(|range| enable_forwarding(range.family()))?;
        let compared = self.rules.lock().await.compare().await;
        let written = self.write_rules().await;
        let found = compared?.join(", ");
        if !found.is_empty() {
            match &written {
                Ok(()) => tracing::warn!(what = found, "another program changed the pod network's rules; restored"),
                Err(_) => tracing::warn!(what = found, "another program changed the pod network's rules"),
            }
        }
        written?;
        self.remove_former_gateways().await
    }

    /// Deletes the conntrack entries of UDP host ports that lead elsewhere than before.
    async fn delete_stale_udp(&self) -> Result<(), NetworkError> {
        let searches = self.rules.lock().await.take_moved();
        let mut all = Ok(());
        for (family, ports, wanted) in searches {
            let what = "the conntrack entries of UDP host ports could not be deleted";
            let search = move || {
                let local = LocalAddresses::of_kernel();
                conntrack::delete_stale(family, &[], |flow| wanted.is_stale(flow, &local))
                    .map_err(|e| NetworkError::new(what, e))
            };
            if let Err(error) = NETWORK.run(search, |error| NetworkError::new(what, error)).await {
                self.rules.lock().await.put_back(family, ports);
                all = Err(error);
            }
        }
        all
    }
}

/// The last error of a repeated operation; it is reported only when it changes.
#[derive(Debug, Default)]
struct Problem(String);

impl Problem {
    fn news(&mut self, result: Result<(), NetworkError>) -> Option<String> {
        let now = result.err().map(|error| error.to_string()).unwrap_or_default();
        let is_new = now != self.0;
        self.0.clone_from(&now);
        (is_new && !now.is_empty()).then_some(now)
    }
}

/// The ranges in use that are neither among `ranges` nor addresses within one.
pub(crate) fn foreign_ranges<'a>(used: &'a BTreeSet<Cidr>, ranges: &'a [Cidr]) -> impl Iterator<Item = &'a Cidr> {
    used.iter().filter(move |used| ipam::is_foreign(used, ranges))
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
        // The pods they lead to no longer exist. A machine without conntrack has no such entries.
        let to_a_pod =
            move |flow: &conntrack::Flow| flow.reply_src != flow.destination && range.contains(&flow.reply_src.ip());
        let deleted = move || conntrack::delete_stale(range.family(), &[], to_a_pod);
        if let Err(error) = NETWORK.run(deleted, std::io::Error::other).await {
            tracing::debug!(%range, %error, "failed to delete conntrack entries that lead to pods; they end by themselves");
        }
    }
    problems
}
