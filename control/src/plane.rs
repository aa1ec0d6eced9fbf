//! The control plane as a whole: opens the data folder, makes what every cluster has, and hands out its
//! doors: a router, clients in this process, a TLS listener, kubeconfigs.

mod bootstrap;
mod certificates;
mod data_dir;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::RangeInclusive,
    path::PathBuf,
    sync::{Arc, RwLock},
};

use axum::{Extension, Router};
use kube::Client;
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;
use windlass_kit::serve::{self, Inside, Peer, Reserved, ServeError, Tls};

use crate::{
    api::{Api, KubeletClient, Settings, UserInfo},
    events,
    metrics::Readings,
    own_api::OwnApi,
    pki::{self, Lifetimes, Names, Pki},
    registry,
    store::{self, Store},
    tokens::{self, Tokens},
};
use certificates::{client_tls, pems, pki_dir};
use data_dir::claim;
pub use data_dir::is_data_dir;

/// Settings of the control plane.
#[derive(Debug, Clone)]
pub struct Config {
    /// The store and certificates live here.
    pub data_dir: PathBuf,
    /// Where the API listens: at least one address, all with the same port. Kubeconfigs name the first.
    pub listen: Vec<SocketAddr>,
    /// Where clients in the cluster reach it.
    pub advertise: IpAddr,
    /// Domain of the cluster's names.
    pub cluster_domain: String,
    /// First address and length of the range of services.
    pub service_cidr: (Ipv4Addr, u8),
    /// Ports of NodePort services.
    pub node_ports: RangeInclusive<u16>,
    /// Tokens of service accounts live no longer than this, in seconds, whatever is asked for.
    pub max_token_seconds: Option<i64>,
    /// The node of this machine.
    pub node_name: String,
    /// Its addresses.
    pub node_addresses: Vec<IpAddr>,
    /// Where the administrator's kubeconfig is written.
    pub admin_kubeconfig: PathBuf,
    /// How long certificates are good for.
    pub lifetimes: Lifetimes,
}

/// Why the control plane could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The data folder is not ours, or cannot be used.
    #[error("the data folder {path} cannot be used: {reason}")]
    DataDir {
        /// Which folder.
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
    Tokens(#[from] tokens::Error),
    /// Sockets.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// An object that every cluster has could not be made.
    #[error("{what} could not be made: {source}")]
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
    store: Store,
    pki: Arc<RwLock<Arc<Pki>>>,
    /// Tells who hands it on when the authority's certificate has been renewed.
    root_ca: watch::Sender<String>,
    names: Arc<Names>,
    kubelet: KubeletClient,
    server_tls: Tls,
    node_tls: Tls,
    /// Places on the API's sockets for [`OwnApi`].
    reserved: Reserved,
    config: Arc<Config>,
}

impl ControlPlane {
    /// Opens the data folder and makes what is missing: certificates, namespaces, the `kubernetes` service.
    /// Must be called inside a runtime.
    ///
    /// # Errors
    /// When the folder is not ours or damaged: nothing of it is changed then.
    pub async fn open(config: Config) -> Result<Self, Error> {
        // The store first: it is what must not be harmed.
        let store = Store::open(Box::new(claim(&config.data_dir)?), &registry::stored())?;
        let first = Ipv4Addr::from_bits(config.service_cidr.0.to_bits() + 1);
        let mut addresses = vec![
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            "::1".parse().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            IpAddr::V4(first),
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
            tracing::warn!(folder = %pki_dir(&config).display(), "the authority's key, ca.key, is not there: certificates are used as they are and cannot be made anew before they end");
        }
        let settings = Settings {
            service_cidr: config.service_cidr,
            node_ports: config.node_ports.clone(),
            max_token_seconds: config.max_token_seconds,
        };
        let kubelet = KubeletClient::new(client_tls(&pki)?);
        let tokens = Tokens::from_pem(&pki.service_accounts.0)?;
        let api = Api::new(store.clone(), &settings, Some(kubelet.clone()), Some(tokens));
        api.repair().await;
        let (server_tls, node_tls) = (Tls::new(pems(&pki.server, &pki))?, Tls::new(pems(&pki.kubelet, &pki))?);
        let root_ca = watch::Sender::new(pki.ca_pem.clone());
        let pki = Arc::new(RwLock::new(Arc::new(pki)));
        let (names, config) = (Arc::new(names), Arc::new(config));
        let plane = Self {
            api,
            store,
            pki,
            root_ca,
            names,
            kubelet,
            server_tls,
            node_tls,
            reserved: Reserved::default(),
            config,
        };
        plane.bootstrap().await?;
        Ok(plane)
    }

    /// The API; requests must carry a [`UserInfo`] extension.
    pub fn router(&self) -> Router {
        self.api.router()
    }

    /// A client in this process, without sockets, that acts as `user`.
    #[must_use]
    pub fn client(&self, user: UserInfo) -> Client {
        Client::new(self.router().layer(Extension(user)), "default")
    }

    /// Takes the API's port at each of its addresses, so that a taken one is known before anything else starts.
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

    /// Serves the API over TLS until `shutdown`.
    ///
    /// # Errors
    /// Never; it has the shape of the other tasks.
    pub async fn serve(&self, listeners: Vec<TcpListener>, shutdown: CancellationToken) -> Result<(), Error> {
        let streams = async {
            shutdown.cancelled().await;
            self.api.close();
        };
        let servers = listeners.into_iter().map(|listener| {
            let (tls, router, reserved) = (self.server_tls.clone(), self.router(), self.reserved.clone());
            serve::serve_tls("apiserver", listener, tls, router, reserved, shutdown.clone())
        });
        tokio::join!(futures::future::join_all(servers), streams);
        Ok(())
    }

    /// Lets `metrics.k8s.io` tell what `rounds` say, until `shutdown` or until nobody reads usage any more.
    ///
    /// # Errors
    /// Never; it has the shape of the other tasks.
    pub async fn follow_usage(
        self,
        mut rounds: watch::Receiver<Arc<Readings>>,
        shutdown: CancellationToken,
    ) -> Result<(), Error> {
        loop {
            let round = Arc::clone(&rounds.borrow_and_update());
            self.api.take_usage(&round);
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                changed = rounds.changed() => if changed.is_err() {
                    // Only an end of the whole node may end this task.
                    shutdown.cancelled().await;
                    return Ok(());
                },
            }
        }
    }

    /// Ends only when the store's writer has: nothing can be written then until the process is started again.
    ///
    /// # Errors
    /// When it has ended before `shutdown`.
    pub async fn watch_store(self, shutdown: CancellationToken) -> Result<(), Error> {
        tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            () = self.store.ended() => Err(Error::Store(store::Error::Closed)),
        }
    }

    /// Puts everything that was written on disk and ends the store, after everything that writes has ended.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub async fn close(&self) -> Result<(), Error> {
        Ok(self.store.close().await?)
    }

    /// Forgets old events until `shutdown`.
    ///
    /// # Errors
    /// Never; it has the shape of the other tasks.
    pub async fn sweep_events(self, shutdown: CancellationToken) -> Result<(), Error> {
        let client = self.client(UserInfo::internal("system:event-sweeper"));
        events::sweep(&self.store, &client, &shutdown).await;
        Ok(())
    }

    /// The way in which this process sees whether its API answers.
    ///
    /// # Errors
    /// When the authority's certificate cannot be used.
    pub fn own_api(&self) -> Result<OwnApi, Error> {
        Ok(OwnApi::new(&self.config.listen, &self.ca_pem(), self.reserved.clone())?)
    }

    /// TLS of the node's own API.
    #[must_use]
    pub fn node_tls(&self) -> Tls {
        self.node_tls.clone()
    }

    /// The node's side of a door through which the API server reaches the node of this process: with the name that its
    /// certificate shows other nodes.
    #[must_use]
    pub fn node_inside(&self) -> Inside {
        let peer = Peer { name: pki::KUBELET_CLIENT.to_owned(), groups: vec![pki::MASTERS.to_owned()] };
        let (door, inside) = serve::inside(peer);
        self.kubelet.reach_inside(self.config.node_name.clone(), door);
        inside
    }

    /// The port that the API has at all of its addresses.
    fn port(&self) -> u16 {
        self.config.listen.first().map_or(0, SocketAddr::port)
    }
}

#[cfg(test)]
mod tests;
