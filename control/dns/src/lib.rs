//! The cluster's DNS: the names of Services, endpoints and pods, and all others by the host's name servers, as CoreDNS
//! with kubeadm's configuration answers them.
//!
//! `watch` follows Namespaces, Services, EndpointSlices and Nodes; `records` is what they say, and a change costs what it
//! concerns. A request is read by `message`, its name by `names`, and answered by `lookup` at once; names of others go
//! through `cache` and `forward`. `server` has the sockets, `sources` says who is answered at all. Where the server is
//! reached is written in the bootstrap objects: the Service `kube-dns`, which leads to its socket like any other.
//!
//! Knows a `kube::Client` and `kit`; imports nothing else of ours.

mod answer;
mod cache;
mod forward;
mod lookup;
mod message;
mod metrics;
mod names;
mod places;
mod records;
mod responder;
mod server;
mod sources;
mod watch;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod tests;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use futures::StreamExt as _;
use jiff::Timestamp;
use kube::Client;
use tokio::{
    net::{TcpListener, UdpSocket},
    sync::watch as signal,
    time::interval,
};
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    cluster_dns::{SERVICE, SERVICE_NAMESPACE, SERVICE_PORT},
    liveness::{HEARTBEAT_INTERVAL, Heartbeats, STUCK_AFTER},
    metrics::Registry,
    net::Cidr,
    serve::{self, ServeError},
    supervise::keep_running,
};

use self::{forward::Forwarder, lookup::Zone, metrics::Metrics, records::Key, responder::Responder, sources::Sources};

/// Configuration of the cluster's DNS.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it listens.
    pub listen: SocketAddr,
    /// The cluster IP of its Service.
    pub service_ip: Ipv4Addr,
    /// The cluster's domain.
    pub domain: String,
    /// The resolv.conf with the host's name servers; detected if `None`, and none of them for an empty path.
    pub resolv_conf: Option<PathBuf>,
    /// The ranges of pods.
    pub pod_cidrs: Vec<Cidr>,
}

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The TCP port.
    #[error(transparent)]
    Listen(#[from] ServeError),
    /// The UDP port.
    #[error("the cluster's DNS cannot listen at UDP {address}: {reason}; end its holder, or set clusterDNSBindAddress")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// Why.
        reason: std::io::Error,
    },
    /// The domain.
    #[error("clusterDomain {0:?} is no DNS name")]
    Domain(String),
}

/// The cluster's DNS with its sockets.
#[derive(Debug)]
pub struct ClusterDns {
    udp: Arc<UdpSocket>,
    tcp: Arc<TcpListener>,
    responder: Arc<Responder>,
    metrics: Arc<Metrics>,
}

impl ClusterDns {
    /// Binds the sockets; requests wait for the records.
    ///
    /// # Errors
    /// When a port is taken, or the domain is no name.
    pub async fn bind(config: Config) -> Result<Self, Error> {
        let tcp = serve::listen("the cluster's DNS", serve::ListenAddress::At(config.listen)).await?;
        // The same port for both, if any will do.
        let address = tcp.local_addr().unwrap_or(config.listen);
        let udp = UdpSocket::bind(address).await.map_err(|reason| Error::Bind { address, reason })?;
        let serial = u32::try_from(Timestamp::now().as_second()).unwrap_or_default();
        let zone = Zone::new(&config.domain, serial, Key::new(SERVICE_NAMESPACE, SERVICE));
        let zone = zone.ok_or_else(|| Error::Domain(config.domain.clone()))?;
        let mut own = vec![IpAddr::V4(config.service_ip)];
        own.extend((address.port() == SERVICE_PORT).then_some(address.ip()));
        let metrics = Arc::new(Metrics::new());
        let forwarder = Forwarder::new(config.resolv_conf, own, Arc::clone(&metrics));
        let sources = Sources::new(config.pod_cidrs);
        let responder = Responder::new(zone, sources, forwarder, Arc::clone(&metrics));
        Ok(Self { udp: Arc::new(udp), tcp: Arc::new(tcp), responder: Arc::new(responder), metrics })
    }

    /// Becomes true when all records are known.
    #[must_use]
    pub fn ready(&self) -> signal::Receiver<bool> {
        self.responder.has_records()
    }

    /// Adds its metrics to a page.
    pub fn register_metrics(&self, registry: &Registry) {
        let (metrics, responder) = (Arc::clone(&self.metrics), Arc::clone(&self.responder));
        registry.register(move |page| metrics.write(page, responder.cached()));
    }

    /// Follows the objects of `client` and answers until `shutdown`.
    pub async fn run(self, client: Client, heartbeats: Heartbeats, shutdown: CancellationToken) {
        let probe = Arc::new(heartbeats.begin("cluster DNS", "", STUCK_AFTER));
        let (udp, tcp, responder) = (self.udp, self.tcp, self.responder);
        let over_udp = keep_running("cluster DNS over UDP", &shutdown, || {
            server::serve_udp(Arc::clone(&udp), Arc::clone(&responder), Arc::clone(&probe), shutdown.clone())
        });
        let over_tcp = keep_running("cluster DNS over TCP", &shutdown, || {
            server::serve_tcp(Arc::clone(&tcp), Arc::clone(&responder), shutdown.clone())
        });
        let follow = follow(client, &responder, &heartbeats, &shutdown);
        let monitored = Arc::new(heartbeats.begin("health of name servers", "", STUCK_AFTER));
        let monitor = keep_running("health of name servers", &shutdown, || {
            let (responder, probe, shutdown) = (Arc::clone(&responder), Arc::clone(&monitored), shutdown.clone());
            async move { responder.monitor(&probe, &shutdown).await }
        });
        tokio::join!(over_udp, over_tcp, follow, monitor);
        if let Some(probe) = Arc::into_inner(monitored) {
            probe.end();
        }
        if let Some(probe) = Arc::into_inner(probe) {
            probe.end();
        }
    }
}

/// Applies all changes until `shutdown`.
async fn follow(client: Client, responder: &Responder, heartbeats: &Heartbeats, shutdown: &CancellationToken) {
    let probe = heartbeats.begin("records of the cluster DNS", "", STUCK_AFTER);
    let mut changes = watch::changes(&client);
    let mut heartbeat = interval(HEARTBEAT_INTERVAL);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => break,
            _ = heartbeat.tick() => probe.beat(),
            change = changes.next() => match change {
                Some(change) => responder.apply(change),
                None => break,
            },
        }
    }
    probe.end();
}
