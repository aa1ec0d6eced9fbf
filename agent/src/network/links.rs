//! Interfaces, addresses and routes, by netlink.
//!
//! The host's side uses one connection that is kept open, but for lists, which each have their own. The pod's side runs
//! on a fresh thread that enters the pod's namespace and ends: no other thread ever changes its namespace.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt as _;
use netlink_packet_route::{
    address::{AddressAttribute, AddressFlags, AddressScope},
    link::{InfoData, InfoVeth, LinkAttribute, LinkMessage},
    neighbour::NeighbourState,
    route::{RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope},
};
use rtnetlink::{Handle, LinkIfb, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder, new_connection};
use windlass_kit::{
    net::Family,
    pod_interface::{HOST_PREFIX, LIMITER_PREFIX, host_interface, limiter_interface},
};

use super::{NetworkError, netns::NetworkNamespace};

/// The link-local default gateway of pods: the host's end of their veth pair.
const fn gateway(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::new(169, 254, 1, 1)),
        Family::V6 => IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1)),
    }
}

const POD_INTERFACE: &str = "eth0";

#[derive(Debug)]
pub(super) struct Links {
    handle: Handle,
    connection: tokio::task::AbortHandle,
}

impl Drop for Links {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// A locally administered MAC address for one end of a pod's veth pair.
fn hardware_address(pod_uid: &str, end: u8) -> Vec<u8> {
    let digest = ring::digest::digest(&ring::digest::SHA256, pod_uid.as_bytes());
    let mut address = vec![0x02, end];
    address.extend_from_slice(&digest.as_ref()[6..10]);
    address
}

/// Takes EEXIST for success.
fn ignore_exists(result: Result<(), rtnetlink::Error>) -> Result<(), rtnetlink::Error> {
    const EXISTS: i32 = 17;
    match result {
        Err(rtnetlink::Error::NetlinkError(message)) if message.raw_code().abs() == EXISTS => Ok(()),
        other => other,
    }
}

async fn link_of(handle: &Handle, name: &str) -> Result<Option<LinkMessage>, rtnetlink::Error> {
    const NO_DEVICE: i32 = 19;
    let mut found = handle.link().get().match_name(name.to_owned()).execute();
    match found.try_next().await {
        Err(rtnetlink::Error::NetlinkError(message)) if message.raw_code().abs() == NO_DEVICE => Ok(None),
        found => found,
    }
}

async fn index_of(handle: &Handle, name: &str) -> Result<Option<u32>, rtnetlink::Error> {
    Ok(link_of(handle, name).await?.map(|link| link.header.index))
}

fn name_of(link: &LinkMessage) -> Option<String> {
    link.attributes.iter().find_map(|a| if let LinkAttribute::IfName(name) = a { Some(name.clone()) } else { None })
}

/// The index of the other end of a veth pair, in its own namespace.
fn peer_of(link: &LinkMessage) -> Option<u32> {
    link.attributes.iter().find_map(|a| if let LinkAttribute::Link(peer) = a { Some(*peer) } else { None })
}

/// The interfaces that a default route leads out of. Pure.
fn ways_out(route: &RouteMessage) -> Vec<u32> {
    let is_default = route.header.destination_prefix_length == 0 && route.header.table == RouteHeader::RT_TABLE_MAIN;
    let of = |attribute: &RouteAttribute| match attribute {
        RouteAttribute::Oif(index) => vec![*index],
        RouteAttribute::MultiPath(hops) => hops.iter().map(|hop| hop.interface_index).collect(),
        _ => Vec::new(),
    };
    if is_default { route.attributes.iter().flat_map(of).collect() } else { Vec::new() }
}

impl Links {
    pub(super) fn open() -> Result<Self, NetworkError> {
        let (connection, handle, _) =
            new_connection().map_err(|e| NetworkError::new("the kernel's interfaces could not be reached", e))?;
        let connection = tokio::spawn(connection).abort_handle();
        Ok(Self { handle, connection })
    }

    /// Adds a gateway address to the loopback interface: the source address of host and masqueraded traffic toward
    /// pods.
    pub(super) async fn add_gateway(&self, gateway: IpAddr) -> Result<(), NetworkError> {
        let put = async {
            let Some(lo) = index_of(&self.handle, "lo").await? else { return Ok(()) };
            add_address(&self.handle, lo, gateway, false).await
        };
        put.await.map_err(|e: rtnetlink::Error| {
            NetworkError::new(format!("the address {gateway} could not be given to the host"), e)
        })
    }

    /// Has the interfaces that the host's IPv6 default routes are advertised on go on with it when it forwards: routers
    /// are not listened to then, and the routes would end some time later. No other interface, for pods and containers
    /// must not advertise routes to the host.
    pub(super) async fn keep_advertised_routes(&self) -> Result<(), NetworkError> {
        let failed = |why: String| NetworkError::new("the host's IPv6 default route could not be kept", why);
        let looked = by_own_socket(async |handle| {
            let mut routes = handle.route().get(RouteMessageBuilder::<Ipv6Addr>::new().build()).execute();
            let mut advertised = Vec::new();
            while let Some(route) = routes.try_next().await? {
                if route.header.protocol == RouteProtocol::Ra {
                    advertised.extend(ways_out(&route));
                }
            }
            let mut names = Vec::new();
            for index in advertised {
                let link = handle.link().get().match_index(index).execute().try_next().await?;
                names.extend(link.and_then(|link| name_of(&link)));
            }
            Ok(names)
        });
        for name in looked.await.map_err(failed)? {
            let file = format!("/proc/sys/net/ipv6/conf/{name}/accept_ra");
            if std::fs::read_to_string(&file).is_ok_and(|value| value.trim() == "1") {
                std::fs::write(&file, "2").map_err(|e| failed(format!("{file}: {e}")))?;
            }
        }
        Ok(())
    }

    /// The smallest MTU among the host's default routes, which pods use: they would not notice a smaller one. `None`
    /// without a default route.
    async fn mtu() -> Result<Option<u32>, String> {
        by_own_socket(async |handle| {
            let mut interfaces = Vec::new();
            let of_either =
                [RouteMessageBuilder::<Ipv4Addr>::new().build(), RouteMessageBuilder::<Ipv6Addr>::new().build()];
            for family in of_either {
                let mut routes = handle.route().get(family).execute();
                while let Some(route) = routes.try_next().await? {
                    interfaces.extend(ways_out(&route));
                }
            }
            let mut smallest = None;
            let mut links = handle.link().get().execute();
            while let Some(link) = links.try_next().await? {
                let mtu = link
                    .attributes
                    .iter()
                    .find_map(|a| if let LinkAttribute::Mtu(mtu) = a { Some(*mtu) } else { None });
                if let Some(mtu) = mtu.filter(|_| interfaces.contains(&link.header.index)) {
                    smallest = Some(smallest.map_or(mtu, |other: u32| other.min(mtu)));
                }
            }
            Ok(smallest)
        })
        .await
    }

    /// Connects a pod; `ends` are its addresses, each with the gateway of its range, and `loopback` whether the host's
    /// own loopback addresses may reach it. Steps that are already done are skipped.
    pub(super) async fn connect(
        &self,
        pod_uid: &str,
        namespace: &NetworkNamespace,
        ends: &[(IpAddr, IpAddr)],
        loopback: bool,
    ) -> Result<(), NetworkError> {
        let addresses: Vec<IpAddr> = ends.iter().map(|(address, _)| *address).collect();
        let failed = |(what, why): (&str, String)| {
            let at: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
            NetworkError::new(format!("the pod at {} could not be connected: {what}", at.join(" and ")), why)
        };
        let host_mac = hardware_address(pod_uid, 1);
        let index = self.pair(pod_uid, namespace).await.map_err(failed)?;
        let inside = {
            let (addresses, host_mac) = (addresses.clone(), host_mac.clone());
            namespace.run(move || with_netlink(async |handle| configure_pod(&handle, &addresses, &host_mac).await))
        };
        for end in ends {
            self.lead_to(index, *end, pod_uid).await.map_err(|(what, e)| failed((what, e.to_string())))?;
        }
        if loopback {
            let file = format!("/proc/sys/net/ipv4/conf/{}/route_localnet", host_interface(pod_uid));
            std::fs::write(file, "1")
                .map_err(|e| failed(("host ports at 127.0.0.1 (route_localnet)", e.to_string())))?;
        }
        let configured = inside.await.map_err(|e| failed(("entering its namespace", e.to_string())))?;
        configured.map_err(|e| failed(("inside its namespace", e)))
    }

    /// Creates a pod's veth pair if it does not exist; returns the index of the host's end, which is up.
    async fn pair(&self, pod_uid: &str, namespace: &NetworkNamespace) -> Result<u32, (&'static str, String)> {
        let name = host_interface(pod_uid);
        let netlink = |what: &'static str| move |e: rtnetlink::Error| (what, e.to_string());
        let looking = "looking for its interface";
        if let Some(index) = index_of(&self.handle, &name).await.map_err(netlink(looking))? {
            let inside = namespace.run(|| with_netlink(async |handle| link_of(&handle, POD_INTERFACE).await)).await;
            let inside = inside.map_err(|e| ("entering its namespace", e.to_string()))?.map_err(|e| (looking, e))?;
            if inside.as_ref().and_then(peer_of) == Some(index) {
                let up = LinkUnspec::new_with_index(index).up().build();
                self.handle.link().set(up).execute().await.map_err(netlink("turning its interface on"))?;
                return Ok(index);
            }
            // Its other end is in the namespace of an earlier sandbox, which somebody still holds.
            self.delete(index).await.map_err(netlink("removing the interface of its earlier sandbox"))?;
        }
        let mtu = Self::mtu().await.map_err(|e| ("looking for the host's default route", e))?;
        let pod_mac = hardware_address(pod_uid, 2);
        let mut peer = LinkMessageBuilder::<LinkUnspec>::new()
            .name(POD_INTERFACE.to_owned())
            .address(pod_mac)
            .setns_by_fd(namespace.descriptor());
        let mut host = LinkMessageBuilder::<LinkVeth>::new(&name, POD_INTERFACE);
        if let Some(mtu) = mtu {
            (peer, host) = (peer.mtu(mtu), host.mtu(mtu));
        }
        let pair = host
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer.build())))
            .address(hardware_address(pod_uid, 1))
            .up()
            .build();
        self.handle.link().add(pair).execute().await.map_err(netlink("making its interfaces"))?;
        let made = index_of(&self.handle, &name).await.map_err(netlink(looking))?;
        made.ok_or_else(|| ("its interface", "it vanished".to_owned()))
    }

    /// Leads one of a pod's addresses to its interface.
    async fn lead_to(
        &self,
        index: u32,
        (address, own): (IpAddr, IpAddr),
        pod_uid: &str,
    ) -> Result<(), (&'static str, rtnetlink::Error)> {
        let gateway = add_address(&self.handle, index, gateway(Family::of(&address)), true).await;
        gateway.map_err(|e| ("its gateway", e))?;
        let neighbour = self
            .handle
            .neighbours()
            .add(index, address)
            .link_layer_address(&hardware_address(pod_uid, 2))
            .state(NeighbourState::Permanent)
            .replace();
        neighbour.execute().await.map_err(|e| ("its hardware address", e))?;
        let route = self.handle.route().add(host_route(address, index, Some(own))).replace();
        route.execute().await.map_err(|e| ("its route", e))
    }

    /// Creates the ifb device that limits a pod's egress if it does not exist.
    pub(super) async fn make_limiter(&self, pod_uid: &str) -> Result<(), String> {
        let name = limiter_interface(pod_uid);
        let made = async {
            if index_of(&self.handle, &name).await?.is_none() {
                self.handle.link().add(LinkIfb::new(&name).up().build()).execute().await?;
            }
            set_link_up(&self.handle, &name).await
        };
        made.await.map_err(|e: rtnetlink::Error| format!("the interface {name} (kernel module ifb): {e}"))
    }

    /// Whether a pod has an interface on the host.
    pub(super) async fn leads_to(&self, pod_uid: &str) -> Result<bool, NetworkError> {
        let name = host_interface(pod_uid);
        let found = index_of(&self.handle, &name).await;
        found
            .map(|index| index.is_some())
            .map_err(|e| NetworkError::new(format!("the interface {name} could not be looked for"), e))
    }

    /// Removes the host's end, and with it the pod's end and the route, and what limited it.
    pub(super) async fn disconnect(&self, pod_uid: &str) -> Result<(), NetworkError> {
        for name in [host_interface(pod_uid), limiter_interface(pod_uid)] {
            let removed = async {
                match index_of(&self.handle, &name).await? {
                    Some(index) => self.delete(index).await,
                    None => Ok(()),
                }
            };
            let attempt = || format!("the interface {name} could not be removed");
            removed.await.map_err(|e: rtnetlink::Error| NetworkError::new(attempt(), e))?;
        }
        Ok(())
    }

    async fn delete(&self, index: u32) -> Result<(), rtnetlink::Error> {
        const NO_DEVICE: i32 = 19;
        match self.handle.link().del(index).execute().await {
            Err(rtnetlink::Error::NetlinkError(message)) if message.raw_code().abs() == NO_DEVICE => Ok(()),
            other => other,
        }
    }

    /// Removes all pod interfaces and the gateways; returns what could not be removed.
    pub(super) async fn remove_all(&self, gateways: &[IpAddr]) -> Vec<String> {
        let mut problems = Vec::new();
        let ours = by_own_socket(async |handle| {
            let mut links = handle.link().get().execute();
            let mut ours = Vec::new();
            while let Some(link) = links.try_next().await? {
                let name = name_of(&link).unwrap_or_default();
                let of_pod = name.strip_prefix(HOST_PREFIX).or_else(|| name.strip_prefix(LIMITER_PREFIX));
                if of_pod.is_some_and(|h| h.len() == 11 && h.bytes().all(|b| b.is_ascii_hexdigit())) {
                    ours.push((link.header.index, name));
                }
            }
            Ok(ours)
        });
        let ours = ours.await.unwrap_or_else(|error| {
            problems.push(format!("the interfaces could not be listed: {error}"));
            Vec::new()
        });
        for (index, name) in ours {
            if let Err(error) = self.delete(index).await {
                problems.push(format!("the interface {name}: {error}"));
            }
        }
        for gateway in gateways {
            problems.extend(self.remove_gateway(*gateway).await.err().map(|error| error.to_string()));
        }
        problems
    }

    /// Removes a gateway address from the host; a missing one is success.
    pub(super) async fn remove_gateway(&self, gateway: IpAddr) -> Result<(), NetworkError> {
        let removed = by_own_socket(async |handle| {
            let all: Vec<_> = handle.address().get().set_address_filter(gateway).execute().try_collect().await?;
            for message in all {
                handle.address().del(message).execute().await?;
            }
            Ok(())
        });
        let attempt = || format!("the address {gateway} could not be taken off the host");
        removed.await.map_err(|e| NetworkError::new(attempt(), e))
    }
}

/// Adds an address to an interface. The node allocates it exclusively, so IPv6 duplicate address detection is skipped.
async fn add_address(handle: &Handle, index: u32, address: IpAddr, link: bool) -> Result<(), rtnetlink::Error> {
    let mut add = handle.address().add(index, address, Family::of(&address).bits());
    if link {
        add.message_mut().header.scope = AddressScope::Link;
    }
    if address.is_ipv6() {
        add.message_mut().attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    ignore_exists(add.execute().await)
}

/// A route to one address behind an interface, from `source` where one is given.
fn host_route(address: IpAddr, index: u32, source: Option<IpAddr>) -> RouteMessage {
    match address {
        IpAddr::V4(address) => {
            let route = RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(address, 32)
                .output_interface(index)
                .scope(RouteScope::Link);
            match source {
                Some(IpAddr::V4(source)) => route.pref_source(source).build(),
                _ => route.build(),
            }
        }
        IpAddr::V6(address) => {
            let route = RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(address, 128).output_interface(index);
            match source {
                Some(IpAddr::V6(source)) => route.pref_source(source).build(),
                _ => route.build(),
            }
        }
    }
}

/// The default route.
fn default_route(family: Family, index: u32) -> RouteMessage {
    match gateway(family) {
        IpAddr::V4(gateway) => RouteMessageBuilder::<Ipv4Addr>::new().gateway(gateway).output_interface(index).build(),
        IpAddr::V6(gateway) => RouteMessageBuilder::<Ipv6Addr>::new().gateway(gateway).output_interface(index).build(),
    }
}

/// Runs netlink requests in the network namespace of this thread, which has no runtime.
fn with_netlink<W, T>(work: impl FnOnce(Handle) -> W) -> Result<T, String>
where
    W: Future<Output = Result<T, rtnetlink::Error>>,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(|e| e.to_string())?;
    runtime.block_on(by_own_socket(work))
}

/// Runs netlink requests through a socket of their own. Whatever reads a list does so: the kernel gives a socket one list at
/// a time, and refuses the next with EBUSY (`netlink_dump_start`), also while the reader of the first is gone.
async fn by_own_socket<W, T>(work: impl FnOnce(Handle) -> W) -> Result<T, String>
where
    W: Future<Output = Result<T, rtnetlink::Error>>,
{
    let (connection, handle, _) = new_connection().map_err(|e| format!("no netlink socket: {e}"))?;
    // Ends with the last handle.
    tokio::spawn(connection);
    work(handle).await.map_err(|e| e.to_string())
}

async fn set_link_up(handle: &Handle, name: &str) -> Result<(), rtnetlink::Error> {
    let Some(index) = index_of(handle, name).await? else { return Ok(()) };
    handle.link().set(LinkUnspec::new_with_index(index).up().build()).execute().await
}

/// Configures the pod's side: interfaces up, addresses, and routes to the gateway.
async fn configure_pod(handle: &Handle, addresses: &[IpAddr], host_mac: &[u8]) -> Result<(), rtnetlink::Error> {
    // Docker disables IPv6 in the namespaces it creates. /proc/sys/net is that of this thread's namespace.
    if addresses.iter().any(IpAddr::is_ipv6) {
        for name in ["all", "default", "lo", POD_INTERFACE] {
            let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "0");
        }
    }
    for name in ["lo", POD_INTERFACE] {
        set_link_up(handle, name).await?;
    }
    let Some(index) = index_of(handle, POD_INTERFACE).await? else { return Err(rtnetlink::Error::RequestFailed) };
    for address in addresses {
        let family = Family::of(address);
        add_address(handle, index, *address, false).await?;
        let neighbour = handle
            .neighbours()
            .add(index, gateway(family))
            .link_layer_address(host_mac)
            .state(NeighbourState::Permanent)
            .replace();
        neighbour.execute().await?;
        ignore_exists(handle.route().add(host_route(gateway(family), index, None)).execute().await)?;
        ignore_exists(handle.route().add(default_route(family, index)).execute().await)?;
    }
    Ok(())
}

/// Sets the loopback interface of a namespace up, which CNI plugins leave to the runtime.
pub(super) async fn set_loopback_up(namespace: &NetworkNamespace) -> Result<(), NetworkError> {
    let failed =
        |why: &dyn std::fmt::Display| NetworkError::new("the pod's loopback interface could not be set up", why);
    let up = namespace.run(|| with_netlink(async |handle| set_link_up(&handle, "lo").await)).await;
    up.map_err(|e| failed(&e))?.map_err(|e| failed(&e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_addresses_are_for_one_station_and_administered_locally() {
        assert_eq!(hardware_address("a", 1).len(), 6);
        assert_eq!(hardware_address("a", 1)[0] & 3, 2, "locally administered, for one");
    }
}
