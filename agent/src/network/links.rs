//! Interfaces, addresses and routes, by netlink.
//!
//! The host's side uses one connection that is kept open. The pod's side runs on a fresh thread that enters the pod's
//! namespace and ends: no other thread ever changes its namespace.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt as _;
use netlink_packet_route::{
    address::{AddressAttribute, AddressFlags, AddressScope},
    link::{InfoData, InfoVeth, LinkAttribute},
    neighbour::NeighbourState,
    route::{RouteMessage, RouteScope},
};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder, new_connection};
use windlass_kit::net::Family;

use super::{NetworkError, netns::NetworkNamespace};

/// The link-local default gateway of pods: the host's end of their veth pair.
const fn gateway(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::new(169, 254, 1, 1)),
        Family::V6 => IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1)),
    }
}

/// Prefix of the host ends of veth pairs.
const PREFIX: &str = "wl";
pub(super) const POD_INTERFACE: &str = "eth0";

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

/// The name of the host's end of a pod's veth pair: `wl` and eleven hex digits of a hash of its uid.
pub(super) fn host_interface(pod_uid: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, pod_uid.as_bytes());
    let hex: String = digest.as_ref().iter().take(6).map(|b| format!("{b:02x}")).collect();
    format!("{PREFIX}{}", &hex[..11])
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

async fn index_of(handle: &Handle, name: &str) -> Result<Option<u32>, rtnetlink::Error> {
    const NO_DEVICE: i32 = 19;
    let mut found = handle.link().get().match_name(name.to_owned()).execute();
    match found.try_next().await {
        Ok(link) => Ok(link.map(|l| l.header.index)),
        Err(rtnetlink::Error::NetlinkError(message)) if message.raw_code().abs() == NO_DEVICE => Ok(None),
        Err(error) => Err(error),
    }
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

    /// Connects a pod; `ends` are its addresses, each with the gateway of its range. Steps that are already done are
    /// skipped.
    pub(super) async fn connect(
        &self,
        pod_uid: &str,
        namespace: &NetworkNamespace,
        ends: &[(IpAddr, IpAddr)],
    ) -> Result<(), NetworkError> {
        let name = host_interface(pod_uid);
        let addresses: Vec<IpAddr> = ends.iter().map(|(address, _)| *address).collect();
        let attempt = |what: &str| {
            let at: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
            format!("the pod at {} could not be connected: {what}", at.join(" and "))
        };
        let failed = |what: &str, why: &dyn std::fmt::Display| NetworkError::new(attempt(what), why);
        let netlink = |what: &'static str| move |e: rtnetlink::Error| (what, e);
        let into_error = |(what, e): (&'static str, rtnetlink::Error)| NetworkError::new(attempt(what), e);
        let (host_mac, pod_mac) = (hardware_address(pod_uid, 1), hardware_address(pod_uid, 2));

        let existing =
            index_of(&self.handle, &name).await.map_err(netlink("looking for its interface")).map_err(into_error)?;
        if existing.is_none() {
            let peer = LinkMessageBuilder::<LinkUnspec>::new()
                .name(POD_INTERFACE.to_owned())
                .address(pod_mac.clone())
                .setns_by_fd(namespace.descriptor())
                .build();
            let pair = LinkMessageBuilder::<LinkVeth>::new(&name, POD_INTERFACE)
                .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
                .address(host_mac.clone())
                .up()
                .build();
            ignore_exists(self.handle.link().add(pair).execute().await)
                .map_err(netlink("making its interfaces"))
                .map_err(into_error)?;
        }
        let inside = {
            let addresses = addresses.clone();
            namespace.run(move || with_netlink(async |handle| configure_pod(&handle, &addresses, &host_mac).await))
        };
        let index =
            index_of(&self.handle, &name).await.map_err(netlink("looking for its interface")).map_err(into_error)?;
        let index = index.ok_or_else(|| failed("its interface", &"it vanished"))?;
        if existing.is_some() {
            let up = LinkUnspec::new_with_index(index).up().build();
            self.handle
                .link()
                .set(up)
                .execute()
                .await
                .map_err(netlink("turning its interface on"))
                .map_err(into_error)?;
        }
        for (address, own) in ends {
            let family = Family::of(address);
            let gateway = add_address(&self.handle, index, gateway(family), true).await;
            gateway.map_err(netlink("its gateway")).map_err(into_error)?;
            let neighbour = self
                .handle
                .neighbours()
                .add(index, *address)
                .link_layer_address(&pod_mac)
                .state(NeighbourState::Permanent)
                .replace();
            neighbour.execute().await.map_err(netlink("its hardware address")).map_err(into_error)?;
            let route = host_route(*address, index, Some(*own));
            self.handle
                .route()
                .add(route)
                .replace()
                .execute()
                .await
                .map_err(netlink("its route"))
                .map_err(into_error)?;
        }
        let configured = inside.await.map_err(|e| failed("entering its namespace", &e))?;
        configured.map_err(|e| failed("inside its namespace", &e))
    }

    /// Removes the host's end, and with it the pod's end and the route.
    pub(super) async fn disconnect(&self, pod_uid: &str) -> Result<(), NetworkError> {
        let name = host_interface(pod_uid);
        let removed = async {
            match index_of(&self.handle, &name).await? {
                Some(index) => self.delete(index).await,
                None => Ok(()),
            }
        };
        removed
            .await
            .map_err(|e: rtnetlink::Error| NetworkError::new(format!("the interface {name} could not be removed"), e))
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
        let mut links = self.handle.link().get().execute();
        let mut ours = Vec::new();
        loop {
            match links.try_next().await {
                Ok(Some(link)) => {
                    let name = link.attributes.iter().find_map(|a| match a {
                        LinkAttribute::IfName(name) => Some(name.clone()),
                        _ => None,
                    });
                    let name = name.unwrap_or_default();
                    let ends_in_hex = name
                        .strip_prefix(PREFIX)
                        .is_some_and(|h| h.len() == 11 && h.bytes().all(|b| b.is_ascii_hexdigit()));
                    if ends_in_hex {
                        ours.push((link.header.index, name));
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    problems.push(format!("the interfaces could not be listed: {error}"));
                    break;
                }
            }
        }
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
        let removed = async {
            let mut all = self.handle.address().get().set_address_filter(gateway).execute();
            while let Some(message) = all.try_next().await? {
                self.handle.address().del(message).execute().await?;
            }
            Ok::<_, rtnetlink::Error>(())
        };
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
fn with_netlink<W>(work: impl FnOnce(Handle) -> W) -> Result<(), String>
where
    W: Future<Output = Result<(), rtnetlink::Error>>,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let (connection, handle, _) = new_connection().map_err(|e| e.to_string())?;
        let connection = tokio::spawn(connection);
        let result = work(handle).await;
        connection.abort();
        result.map_err(|e| e.to_string())
    })
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
    fn names_fit_the_kernel_and_differ() {
        let (a, b) = (host_interface("a"), host_interface("b"));
        assert_eq!(a.len(), 13);
        assert_ne!(a, b);
        assert_eq!(hardware_address("a", 1).len(), 6);
        assert_eq!(hardware_address("a", 1)[0] & 3, 2, "locally administered, for one");
    }
}
