//! One HTTP server for each Service with a health check node port, where load balancers query whether this node has an
//! endpoint (kube-proxy: pkg/proxy/healthcheck/service_health.go).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Router,
    http::{HeaderValue, StatusCode},
    response::Response,
};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use windlass_kit::{
    events::{Recorder, Severity},
    serve::serve_plain,
};

use super::{Status, json};
use crate::{
    model::{Family, Model, ServiceId},
    object_ref,
};

/// The ready endpoints of this node and one family, for each Service with a health check node port. Pure.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct LocalEndpoints {
    /// Port and number of distinct addresses, by Service.
    pub(crate) services: BTreeMap<ServiceId, (u16, usize)>,
}

impl LocalEndpoints {
    pub(crate) fn of(model: &Model, family: Family) -> Self {
        let mut out = Self::default();
        for (id, service) in model.health_checked().filter(|(_, s)| s.cluster_ip(family).is_some()) {
            let mut addresses: BTreeSet<IpAddr> = BTreeSet::new();
            for port in &service.ports {
                let here = model.endpoints(id, port, family);
                addresses.extend(here.iter().filter(|e| e.local && e.ready && !e.terminating).map(|e| e.ip));
            }
            out.services.insert(id.clone(), (service.health_check_node_port, addresses.len()));
        }
        out
    }
}

#[derive(Debug)]
struct HealthServer {
    count: Arc<AtomicUsize>,
    stop: CancellationToken,
}

/// The open servers.
#[derive(Debug)]
pub(crate) struct HealthCheckServers {
    status: Arc<Status>,
    /// With the name of the node, which the events tell.
    events: Option<(Recorder, String)>,
    /// By Service and address.
    servers: BTreeMap<(ServiceId, SocketAddr), HealthServer>,
    /// Servers that failed to open, which was logged.
    unavailable: BTreeSet<(ServiceId, SocketAddr)>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl HealthCheckServers {
    pub(crate) fn new(status: Arc<Status>, events: Option<(Recorder, String)>, stop: CancellationToken) -> Self {
        Self { status, events, servers: BTreeMap::new(), unavailable: BTreeSet::new(), tasks: TaskTracker::new(), stop }
    }

    /// Opens, closes and moves the servers of a family; returns whether all of them are open. Those that failed to open
    /// are retried with the next call.
    pub(crate) async fn set(&mut self, family: Family, wanted: LocalEndpoints, addresses: &[IpAddr]) -> bool {
        self.servers.retain(|(id, at), server| {
            let stays = Family::of(&at.ip()) != family
                || (wanted.services.get(id).is_some_and(|(port, _)| *port == at.port())
                    && addresses.contains(&at.ip()));
            if !stays {
                server.stop.cancel();
            }
            stays
        });
        self.unavailable.retain(|(id, at)| wanted.services.get(id).is_some_and(|(port, _)| *port == at.port()));
        let mut all = true;
        for (id, (port, count)) in wanted.services {
            for ip in addresses {
                all &= self.open(&id, SocketAddr::new(*ip, port), count).await;
            }
        }
        all
    }

    async fn open(&mut self, id: &ServiceId, address: SocketAddr, count: usize) -> bool {
        let key = (id.clone(), address);
        if let Some(server) = self.servers.get(&key) {
            server.count.store(count, Ordering::Relaxed);
            return true;
        }
        match listen(address) {
            Ok(listener) => {
                let server = HealthServer { count: Arc::new(AtomicUsize::new(count)), stop: self.stop.child_token() };
                let router = router(id.clone(), server.count.clone(), self.status.clone());
                let stop = server.stop.clone();
                self.tasks.spawn(serve_plain("kubeproxy_service_healthz", listener, router, stop));
                self.unavailable.remove(&key);
                self.servers.insert(key, server);
                true
            }
            Err(error) => {
                if self.unavailable.insert(key) {
                    tracing::warn!(%error, service = %id, %address, "failed to listen at the health check node port; retrying");
                    self.record_failure_event(id, address.port(), &error);
                }
                false
            }
        }
    }

    fn record_failure_event(&self, id: &str, port: u16, error: &std::io::Error) {
        let Some(about) = object_ref::service(id) else { return };
        if let Some((events, node)) = &self.events {
            let message = format!("node {node} failed to start healthcheck {id:?} on port {port}: {error}");
            events.record(&about, Severity::Warning, "FailedToStartServiceHealthcheck", message);
        }
    }

    pub(crate) async fn close(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Each family has a socket of its own, so that one does not take the other's port.
fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => {
            let socket = TcpSocket::new_v6()?;
            setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
            socket
        }
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(128)
}

fn router(id: ServiceId, count: Arc<AtomicUsize>, status: Arc<Status>) -> Router {
    Router::new().fallback(move || {
        let (id, count, status) = (id.clone(), count.clone(), status.clone());
        async move { answer(&id, count.load(Ordering::Relaxed), status.is_healthy()) }
    })
}

fn answer(id: &str, count: usize, healthy: bool) -> Response {
    let (namespace, name) = id.split_once('/').unwrap_or_default();
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": {},\n\t\t\"name\": {}\n\t}},\n\t\"localEndpoints\": {count},\n\t\
         \"serviceProxyHealthy\": {healthy}\n}}",
        quoted(namespace),
        quoted(name)
    );
    let code = if count > 0 && healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut response = json(code, body);
    response.headers_mut().insert("x-load-balancing-endpoint-weight", HeaderValue::from(count));
    response
}
