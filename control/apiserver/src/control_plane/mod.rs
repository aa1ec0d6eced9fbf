//! The control plane as a whole: opens the data directory, bootstraps the cluster, and provides a router, clients in
//! this process, TLS listeners and kubeconfigs.

mod bootstrap;
mod certificates;
mod component;
mod data_dir;
pub(crate) mod instance;
mod metrics;
mod options;
pub(crate) mod rbac_defaults;
mod stored_types;
mod tasks;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::RangeInclusive,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::Instant,
};

use axum::{
    Extension, Router,
    extract::Request,
    middleware::{self, Next},
    response::Response,
};
use kube::Client;
use parking_lot::RwLock;
use tokio::{net::TcpListener, sync::watch};
use windlass_identity::{
    pki::{self, Lifetimes, Names, Pki},
    service_account_tokens,
};
use windlass_kit::{
    rest_client,
    serve::{self, ClientIdentity, InProcessListener, ReservedAddresses, ServeError, Tls},
};

use crate::{
    aggregator::Aggregator,
    apiextensions::CustomResources,
    apiserver::{Api, KubeletClient, User, generate::new_uid, handlers::proxy::is_proxyable},
    kinds,
    loopback_probe::LoopbackProbe,
    metrics::{Readings, Usage},
    plugin::{
        admission::{AdmissionConfiguration, AdmissionError},
        audit::{AuditConfig, AuditError, AuditLog},
        authenticator::{StaticTokens, TokenFileError, TokenUses},
    },
    store::{self, Store},
    webhook::ExtensionClients,
};
use certificates::{client_tls, front_proxy, pems, pki_dir, serving_pems};
pub use component::Component;
pub use data_dir::{
    RESTORE_DIR, copy_store, finish_restore, has_store, is_data_dir, remove_unmarked_store, restore_store,
};
use data_dir::{adopt_data_dir, store_dir};
use instance::{ApiConfig, Instance};
pub use options::{AuthorizationMode, ClientAuthority, Durability, ServerOptions, ServiceAccountIssuer};

/// Configuration of the control plane.
#[derive(Debug, Clone)]
pub struct Config {
    /// Directory of the store and the certificates.
    pub data_dir: PathBuf,
    /// Addresses of the API: at least one, all with the same port. Kubeconfigs name the first.
    pub listen: Vec<SocketAddr>,
    /// The address by which clients in the cluster reach the API.
    pub advertise: IpAddr,
    /// The cluster's DNS domain.
    pub cluster_domain: String,
    /// First address and prefix length of the service CIDR.
    pub service_cidr: (Ipv4Addr, u8),
    /// Where the cluster's DNS listens; `None` if it is not served.
    pub cluster_dns: Option<SocketAddr>,
    /// The node port range.
    pub node_ports: RangeInclusive<u16>,
    /// Maximum lifetime of service account tokens, in seconds.
    pub max_token_seconds: Option<i64>,
    /// The node of this machine.
    pub node_name: String,
    /// Its addresses.
    pub node_addresses: Vec<IpAddr>,
    /// Path of the administrator's kubeconfig.
    pub admin_kubeconfig: PathBuf,
    /// Lifetimes of certificates.
    pub lifetimes: Lifetimes,
    /// A file with tokens and their users.
    pub token_auth_file: Option<PathBuf>,
    /// The audit log; `None` for none.
    pub audit: Option<AuditConfig>,
    /// A file with the configuration of admission plugins.
    pub admission_control_config_file: Option<PathBuf>,
    /// The node of this process enforces NetworkPolicies: who writes one is not warned that it has no effect.
    pub network_policies: bool,
    /// What kube-apiserver has flags for and `windlass up` decides itself.
    pub options: ServerOptions,
}

/// Why the control plane could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The data directory cannot be used.
    #[error("the data directory {path} cannot be used: {reason}")]
    DataDir {
        /// The directory.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// Certificates.
    #[error(transparent)]
    Pki(#[from] pki::Error),
    /// The key of service accounts.
    #[error(transparent)]
    Tokens(#[from] service_account_tokens::Error),
    /// The file with tokens.
    #[error(transparent)]
    TokenFile(#[from] TokenFileError),
    /// The audit log.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The configuration of admission plugins.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// Sockets.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// A bootstrap object could not be created.
    #[error("failed to create {what}: {}", windlass_kit::client::message(.source))]
    Bootstrap {
        /// Which.
        what: String,
        /// Why.
        source: Box<kube::Error>,
    },
}

/// The running control plane, apart from its sockets and controllers.
#[derive(Debug, Clone)]
pub struct ControlPlane {
    api: Api,
    usage: Usage,
    token_uses: Arc<TokenUses>,
    custom_resources: Arc<CustomResources>,
    aggregator: Aggregator,
    extension_clients: Arc<ExtensionClients>,
    store: Store,
    pki: Arc<RwLock<Arc<Pki>>>,
    /// Certificates were renewed that no kubeconfig has yet.
    kubeconfigs_are_stale: Arc<AtomicBool>,
    /// The CA bundle; updated when the CA certificate is renewed.
    root_ca: watch::Sender<String>,
    names: Arc<Names>,
    kubelet: KubeletClient,
    server_tls: Tls,
    node_tls: Tls,
    /// Reserved connection slots for [`LoopbackProbe`].
    reserved: ReservedAddresses,
    /// Of this process, among those that have used the data directory.
    instance: String,
    config: Arc<Config>,
}

impl ControlPlane {
    /// Opens the data directory and creates what is missing: certificates, namespaces, the `kubernetes` service. Must
    /// be called inside a runtime.
    ///
    /// # Errors
    /// When the directory is foreign or damaged: it is left unchanged then.
    pub async fn open(config: Config) -> Result<Self, Error> {
        // The store first: a foreign or damaged directory must stay untouched.
        let store = kinds::open_store(adopt_data_dir(&config.data_dir, config.options.durability)?)?;
        let mut addresses = vec![
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            "::1".parse().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            IpAddr::V4(first_address(config.service_cidr)),
            config.advertise,
        ];
        addresses.extend(&config.node_addresses);
        addresses.extend(config.listen.iter().map(SocketAddr::ip).filter(|ip| !ip.is_unspecified()));
        addresses.sort_unstable();
        addresses.dedup();
        let names = Names {
            node: config.node_name.clone(),
            addresses,
            node_addresses: config.node_addresses.clone(),
            domain: config.cluster_domain.clone(),
        };
        let pki = Pki::open(&pki_dir(&config), &names, config.lifetimes)?;
        if !pki.renews {
            tracing::warn!(dir = %pki_dir(&config).display(), "CA key ca.key not found: certificates are used as they are and cannot be renewed before they expire");
        }
        let tokens = certificates::token_issuer(&config, &pki)?;
        let audit = config.audit.as_ref().map(AuditLog::open).transpose()?.map(Arc::new);
        let static_tokens =
            config.token_auth_file.as_deref().map(|file| StaticTokens::read(file, tokens.audiences())).transpose()?;
        let admission =
            config.admission_control_config_file.as_deref().map(AdmissionConfiguration::read).transpose()?;
        let api_config = ApiConfig {
            admission: admission.unwrap_or_default(),
            max_token_seconds: config.max_token_seconds,
            token_authenticators: static_tokens.map(|tokens| Arc::new(tokens) as _).into_iter().collect(),
            audit: audit.clone().map(|audit| audit as _),
            network_policies: config.network_policies,
            options: config.options.clone(),
            ..ApiConfig::new(config.service_cidr, config.node_ports.clone())
        };
        let kubelet = KubeletClient::new(client_tls(&pki)?);
        let instance = Instance::new(&store, &api_config, Some(kubelet.clone()), Some(tokens));
        instance.extension_clients.set_front_proxy(front_proxy(&pki)?);
        let api = instance.api;
        if let Some(audit) = audit {
            audit.register_metrics(api.metrics());
        }
        metrics::register(&api, &store);
        let custom_resources = CustomResources::load(&api, &instance.conversion_webhooks);
        stored_types::repair(&api, &store_dir(&config.data_dir)).await?;
        let (server_tls, node_tls) = (Tls::new(serving_pems(&config, &pki))?, Tls::new(pems(&pki.kubelet, &pki))?);
        let root_ca = watch::Sender::new(pki.ca_pem.clone());
        let pki = Arc::new(RwLock::new(Arc::new(pki)));
        let (names, config) = (Arc::new(names), Arc::new(config));
        let plane = Self {
            api,
            usage: instance.usage,
            token_uses: instance.token_uses,
            custom_resources: Arc::new(custom_resources),
            aggregator: instance.aggregator,
            extension_clients: instance.extension_clients,
            store,
            pki,
            kubeconfigs_are_stale: Arc::default(),
            root_ca,
            names,
            kubelet,
            server_tls,
            node_tls,
            reserved: ReservedAddresses::default(),
            instance: new_uid().unwrap_or_default(),
            config,
        };
        if !is_proxyable(plane.config.advertise) {
            // Endpoints take no loopback address, which a slice does.
            tracing::warn!(
                address = %plane.config.advertise,
                "the kubernetes service has no Endpoints with this address; clients find the API by its EndpointSlice alone"
            );
        }
        plane.bootstrap().await?;
        plane.api.post_start_hooks().run("rbac/bootstrap-roles", plane.bootstrap_rbac()).await?;
        let registered = plane.aggregator.register_own(&plane.client(User::api_server())).await;
        registered
            .map_err(|source| Error::Bootstrap { what: "the API services".to_owned(), source: Box::new(source) })?;
        Ok(plane)
    }

    /// The API; requests must carry a [`User`] extension.
    pub fn router(&self) -> Router {
        self.api.router()
    }

    /// A client in this process, without sockets, that acts as `user`.
    #[must_use]
    pub fn client(&self, user: User) -> Client {
        let router = self.router().layer(Extension(user)).layer(middleware::from_fn(counted));
        Client::new(router, "default")
    }

    /// Binds the API's port at each address, so that a port in use is known before anything else starts.
    ///
    /// # Errors
    /// Names the address and the port.
    pub async fn listen(&self) -> Result<Vec<TcpListener>, Error> {
        let mut listeners = Vec::new();
        for address in &self.config.listen {
            listeners.push(serve::listen("the Kubernetes API", *address).await?);
        }
        Ok(listeners)
    }

    /// Takes samples of the node in this process, for `metrics.k8s.io`.
    pub fn record_usage(&self, readings: &Readings) {
        self.usage.record(readings);
    }

    /// Changes whenever the API serves other types.
    #[must_use]
    pub fn served_types(&self) -> watch::Receiver<u64> {
        self.api.catalogs().served_types()
    }

    /// Whether the API serves a group version; the core group has no name.
    #[must_use]
    pub fn serves(&self, group: &str, version: &str) -> bool {
        self.api.catalogs().current().group_version(group, version).is_some()
    }

    /// What `/metrics` of the API shows.
    #[must_use]
    pub fn metrics(&self) -> windlass_kit::metrics::Registry {
        self.api.metrics().clone()
    }

    /// A probe of this API over its own socket.
    ///
    /// # Errors
    /// When the authority's certificate cannot be used.
    pub fn loopback_probe(&self) -> Result<LoopbackProbe, Error> {
        Ok(LoopbackProbe::new(&self.config.listen, &self.ca_pem(), self.reserved.clone())?)
    }

    /// TLS of the node's own API.
    #[must_use]
    pub fn node_tls(&self) -> Tls {
        self.node_tls.clone()
    }

    /// A listener in this process for the API server's connections to the node, with the identity of its client
    /// certificate.
    #[must_use]
    pub fn in_process_node_listener(&self) -> InProcessListener {
        let peer = ClientIdentity {
            name: pki::KUBELET_CLIENT.to_owned(),
            groups: vec![pki::MASTERS_GROUP.to_owned()],
            ..ClientIdentity::default()
        };
        let (connector, listener) = serve::in_process(peer);
        self.kubelet.set_in_process_node(self.config.node_name.clone(), connector);
        listener
    }

    /// The cluster IP of the `kubernetes` service.
    fn first_cluster_ip(&self) -> Ipv4Addr {
        first_address(self.config.service_cidr)
    }

    /// The API's port, the same at all addresses.
    fn port(&self) -> u16 {
        self.config.listen.first().map_or(0, SocketAddr::port)
    }
}

/// Counts a request of a component of this process.
async fn counted(request: Request, next: Next) -> Response {
    let (method, asked_at) = (request.method().clone(), Instant::now());
    let response = next.run(request).await;
    rest_client::record(rest_client::IN_PROCESS, method.as_str(), Some(response.status().as_u16()), asked_at.elapsed());
    response
}

fn first_address((network, _): (Ipv4Addr, u8)) -> Ipv4Addr {
    Ipv4Addr::from_bits(network.to_bits() + 1)
}

#[cfg(test)]
pub(crate) mod tests;
