//! Our own network: addresses from the node's ranges, one routed pair per pod.

use std::net::IpAddr;

use tokio::sync::Mutex;
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
    cluster_cidrs: Vec<Cidr>,
    links: Links,
    /// One of each family.
    pools: Mutex<Vec<Addresses>>,
}

impl Routed {
    pub(super) async fn open(config: NetworkConfig) -> Result<Self, NetworkError> {
        let links = Links::open()?;
        let mut pools = Vec::new();
        for cidr in &config.pod_cidrs {
            forward(cidr.family())?;
            let dir = match cidr.family() {
                Family::V4 => config.dir.clone(),
                Family::V6 => config.dir.join("v6"),
            };
            let pool = Addresses::open(&dir, *cidr)?;
            links.put_gateway(pool.gateway()).await?;
            pools.push(pool);
        }
        let routed = Self { cluster_cidrs: config.cluster_cidrs, links, pools: Mutex::default() };
        for pool in &pools {
            routed.write_rules(pool).await?;
        }
        *routed.pools.lock().await = pools;
        Ok(routed)
    }

    pub(super) async fn allocate(&self, pod_uid: &str) -> Result<Vec<IpAddr>, NetworkError> {
        self.pools.lock().await.iter_mut().map(|pool| pool.allocate(pod_uid)).collect()
    }

    pub(super) async fn attach(&self, request: Attach) -> Result<Vec<IpAddr>, NetworkError> {
        let mut ends = Vec::new();
        {
            let mut pools = self.pools.lock().await;
            for address in &request.addresses {
                let Some(pool) = pools.iter_mut().find(|p| p.family() == Family::of(address)) else { continue };
                let holder = Holder { pod_uid: request.pod_uid.clone(), host_ports: request.host_ports.clone() };
                if pool.hold(*address, holder)? {
                    self.write_rules(pool).await?;
                }
                ends.push((*address, pool.gateway()));
            }
        }
        self.links.connect(&request.pod_uid, request.pid, &ends).await?;
        if request.bandwidth != Bandwidth::default() {
            let interface = links::interface_of(&request.pod_uid);
            bandwidth::hold(interface, links::POD_INTERFACE, request.pid, request.bandwidth).await?;
        }
        Ok(request.addresses)
    }

    pub(super) async fn detach(&self, pod_uid: &str) -> Result<(), NetworkError> {
        self.links.disconnect(pod_uid).await?;
        for pool in self.pools.lock().await.iter_mut() {
            if pool.release(pod_uid)? {
                self.write_rules(pool).await?;
            }
        }
        Ok(())
    }

    /// The pods that hold an address.
    pub(super) async fn pods(&self) -> Vec<String> {
        self.pools.lock().await.iter().flat_map(|pool| pool.pods().map(str::to_owned).collect::<Vec<_>>()).collect()
    }

    async fn write_rules(&self, pool: &Addresses) -> Result<(), NetworkError> {
        let family = pool.family();
        let cluster = self.cluster_cidrs.iter().find(|c| c.family() == family).copied().unwrap_or(pool.cidr());
        rules::apply(family, rules::chains(pool.cidr(), cluster, pool.holders())).await
    }
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
