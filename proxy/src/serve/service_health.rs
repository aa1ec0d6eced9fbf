//! One small HTTP server for each Service with a health check node port: load balancers ask it
//! whether this node has an endpoint.

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
    subject,
};

/// Local ready endpoints of one family of each Service with a health check node port. Pure.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct LocalHealth {
    /// Port and number of distinct addresses, by Service.
    pub(crate) services: BTreeMap<ServiceId, (u16, usize)>,
}

impl LocalHealth {
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
struct Open {
    count: Arc<AtomicUsize>,
    stop: CancellationToken,
}

/// The servers that are open.
#[derive(Debug)]
pub(crate) struct ServiceHealth {
    status: Arc<Status>,
    events: Option<Recorder>,
    /// By Service and address.
    open: BTreeMap<(ServiceId, SocketAddr), Open>,
    /// Those that cannot be opened, once told.
    taken: BTreeSet<(ServiceId, SocketAddr)>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl ServiceHealth {
    pub(crate) fn new(status: Arc<Status>, events: Option<Recorder>, stop: CancellationToken) -> Self {
        Self { status, events, open: BTreeMap::new(), taken: BTreeSet::new(), tasks: TaskTracker::new(), stop }
    }

    /// Opens, closes and moves the servers of a family as wanted; whether all of them are open. Those whose port is
    /// taken are tried again next time.
    pub(crate) async fn set(&mut self, family: Family, wanted: LocalHealth, addresses: &[IpAddr]) -> bool {
        self.open.retain(|(id, at), open| {
            let stays = Family::of(&at.ip()) != family
                || (wanted.services.get(id).is_some_and(|(port, _)| *port == at.port())
                    && addresses.contains(&at.ip()));
            if !stays {
                open.stop.cancel();
            }
            stays
        });
        self.taken.retain(|(id, at)| wanted.services.get(id).is_some_and(|(port, _)| *port == at.port()));
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
        if let Some(open) = self.open.get(&key) {
            open.count.store(count, Ordering::Relaxed);
            return true;
        }
        match listen(address) {
            Ok(listener) => {
                let open = Open { count: Arc::new(AtomicUsize::new(count)), stop: self.stop.child_token() };
                let router = router(id.clone(), open.count.clone(), self.status.clone());
                let stop = open.stop.clone();
                self.tasks.spawn(serve_plain("kubeproxy_service_healthz", listener, router, stop));
                self.taken.remove(&key);
                self.open.insert(key, open);
                true
            }
            Err(error) => {
                if self.taken.insert(key) {
                    tracing::warn!(%error, service = %id, %address, "cannot listen at the health check node port; trying again");
                    self.complain(id, address.port(), &error);
                }
                false
            }
        }
    }

    fn complain(&self, id: &str, port: u16, error: &std::io::Error) {
        let Some(about) = subject::service(id) else { return };
        if let Some(events) = &self.events {
            let message = format!("node cannot listen at health check node port {port}: {error}");
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
