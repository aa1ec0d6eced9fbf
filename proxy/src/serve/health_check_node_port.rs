//! One HTTP server for each Service with a health check node port, where load balancers query whether this node has an
//! endpoint (kube-proxy: pkg/proxy/healthcheck/service_health.go).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    http::{HeaderValue, StatusCode},
    response::Response,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use windlass_kit::{
    events::{Recorder, Severity},
    serve::{ListenAddress, Listener, serve_plain},
};

use super::{Status, json};
use crate::{
    model::{Family, Model, ServiceId},
    object_ref,
};

/// How often a port that cannot be bound is reported, while it is retried all the time.
const TELL_AGAIN: Duration = Duration::from_mins(10);

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

/// An open server. It owns the socket, so that the port is free for another Service when it is closed.
#[derive(Debug)]
struct HealthServer {
    count: Arc<AtomicUsize>,
    listener: Listener,
    stop: CancellationToken,
}

impl HealthServer {
    fn close(&self) {
        self.listener.close();
        self.stop.cancel();
    }
}

/// Reported problems, and when each was last reported.
#[derive(Debug, Default)]
struct Told(BTreeMap<(ServiceId, SocketAddr), Instant>);

impl Told {
    /// Whether to report it now: at first, and again while it lasts.
    fn is_due(&mut self, key: &(ServiceId, SocketAddr), now: Instant) -> bool {
        let due = self.0.get(key).is_none_or(|told| now.saturating_duration_since(*told) >= TELL_AGAIN);
        if due {
            self.0.insert(key.clone(), now);
        }
        due
    }
}

/// The open servers.
#[derive(Debug)]
pub(crate) struct HealthCheckServers {
    status: Arc<Status>,
    /// With the name of the node, which the events mention.
    events: Option<(Recorder, String)>,
    /// By Service and address.
    servers: BTreeMap<(ServiceId, SocketAddr), HealthServer>,
    /// Servers that failed to open.
    unavailable: Told,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl HealthCheckServers {
    pub(crate) fn new(status: Arc<Status>, events: Option<(Recorder, String)>, stop: CancellationToken) -> Self {
        Self { status, events, servers: BTreeMap::new(), unavailable: Told::default(), tasks: TaskTracker::new(), stop }
    }

    /// Opens, closes and moves the servers of a family; returns whether all of them are open. Those that failed to open
    /// are retried with the next call.
    pub(crate) fn set(&mut self, family: Family, wanted: LocalEndpoints, addresses: &[IpAddr], now: Instant) -> bool {
        self.servers.retain(|(id, at), server| {
            let stays = Family::of(&at.ip()) != family
                || (wanted.services.get(id).is_some_and(|(port, _)| *port == at.port())
                    && addresses.contains(&at.ip()));
            if !stays {
                server.close();
            }
            stays
        });
        self.unavailable.0.retain(|(id, at), _| {
            Family::of(&at.ip()) != family
                || (wanted.services.get(id).is_some_and(|(port, _)| *port == at.port()) && addresses.contains(&at.ip()))
        });
        let mut all = true;
        for (id, (port, count)) in wanted.services {
            for ip in addresses {
                all &= self.open(&id, SocketAddr::new(*ip, port), count, now);
            }
        }
        all
    }

    fn open(&mut self, id: &ServiceId, address: SocketAddr, count: usize, now: Instant) -> bool {
        let key = (id.clone(), address);
        if let Some(server) = self.servers.get(&key) {
            server.count.store(count, Ordering::Relaxed);
            return true;
        }
        // Each family has a separate socket, so that one does not take the other's port.
        match ListenAddress::At(address).bind() {
            Ok(listener) => {
                let listener = Listener::from(listener);
                let count = Arc::new(AtomicUsize::new(count));
                let server = HealthServer { count, listener: listener.clone(), stop: self.stop.child_token() };
                let router = router(id.clone(), server.count.clone(), self.status.clone());
                let stop = server.stop.clone();
                self.tasks.spawn(serve_plain("kubeproxy_service_healthz", listener, router, stop));
                self.unavailable.0.remove(&key);
                self.servers.insert(key, server);
                true
            }
            Err(error) => {
                if self.unavailable.is_due(&key, now) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A lasting conflict is retried each time and reported now and then; one that is over is reported when it recurs.
    #[tokio::test]
    async fn a_port_that_stays_taken_is_told_of_again() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let status = Arc::new(Status::new(Duration::from_secs(30)));
        let mut servers = HealthCheckServers::new(status, None, CancellationToken::new());
        let set = |servers: &mut HealthCheckServers, port: u16, now: Instant| {
            let wanted = LocalEndpoints { services: [("ns/web".into(), (port, 1))].into() };
            servers.set(Family::V4, wanted, &[address.ip()], now)
        };
        let key = (ServiceId::from("ns/web"), address);
        let begun = Instant::now();
        let after = |minutes| begun + Duration::from_mins(minutes);
        for (minutes, told) in [(0, 0), (1, 0), (9, 0), (10, 10), (11, 10), (20, 20), (300, 300)] {
            assert!(!set(&mut servers, address.port(), after(minutes)));
            assert_eq!(servers.unavailable.0[&key], after(told), "after {minutes} minutes");
        }
        // The Service has no such port any more.
        servers.set(Family::V4, LocalEndpoints::default(), &[address.ip()], after(301));
        assert!(servers.unavailable.0.is_empty());
        assert!(!set(&mut servers, address.port(), after(302)));
        assert_eq!(servers.unavailable.0[&key], after(302));
        drop(taken);
        assert!(set(&mut servers, address.port(), after(303)));
        assert!(servers.unavailable.0.is_empty());
        servers.close().await;
    }
}
