//! The control plane as a whole: opens the data folder, makes what every cluster has, and hands out its
//! doors: a router, clients in this process, a TLS listener, kubeconfigs.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use axum::{Extension, Router};
use k8s_openapi::api::{
    core::v1::{Namespace, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api as KubeApi, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;
use windlass_kit::serve::{self, Inside, Peer, Pems, Reserved, ServeError, Tls};

use crate::{
    api::{Api, KubeletClient, Settings, UserInfo},
    events,
    metrics::Readings,
    own_api::OwnApi,
    pki::{self, Lifetimes, Names, Pair, Pki},
    registry,
    store::{self, Disk, Store},
    tokens::{self, Tokens},
};

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

/// Marks a folder as ours; what it says is the layout of the folder.
const MARK: &str = "windlass-data";
const LAYOUT: &str = "1\n";
const STORE: &str = "store.redb";
/// Certificates are looked at this often; they are made anew long before they end.
const RENEW: Duration = Duration::from_secs(3600);

/// Whether a folder is one that [`ControlPlane::open`] has made.
#[must_use]
pub fn is_data_dir(path: &Path) -> bool {
    path.join(MARK).is_file()
}

/// The running control plane, apart from its sockets and controllers.
#[derive(Debug, Clone)]
pub struct ControlPlane {
    api: Api,
    store: Store,
    pki: Arc<RwLock<Arc<Pki>>>,
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
        let pki = Arc::new(RwLock::new(Arc::new(pki)));
        let (names, config) = (Arc::new(names), Arc::new(config));
        let plane =
            Self { api, store, pki, names, kubelet, server_tls, node_tls, reserved: Reserved::default(), config };
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

    /// Makes certificates anew before they end, until `shutdown`; whoever uses them goes on without a new start.
    ///
    /// # Errors
    /// Never; it has the shape of the other tasks.
    pub async fn renew(self, shutdown: CancellationToken) -> Result<(), Error> {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = tokio::time::sleep(RENEW) => {}
            }
            match self.renew_once() {
                Ok(true) => tracing::info!("certificates that would have ended were made anew"),
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "certificates could not be renewed; it is tried again in an hour"),
            }
        }
    }

    /// Looks at all certificates once; `false` when all last.
    fn renew_once(&self) -> Result<bool, Error> {
        let before = self.pki();
        let now = before.renewed(&pki_dir(&self.config), &self.names, self.config.lifetimes)?;
        let certificates = |pki: &Pki| {
            [&pki.server, &pki.admin, &pki.node, &pki.kubelet, &pki.kubelet_client].map(|pair| pair.cert_pem.clone())
        };
        if certificates(&before) == certificates(&now) {
            return Ok(false);
        }
        self.server_tls.replace(pems(&now.server, &now))?;
        self.node_tls.replace(pems(&now.kubelet, &now))?;
        self.kubelet.replace(client_tls(&now)?);
        *self.pki.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(now);
        self.write_kubeconfigs()?;
        Ok(true)
    }

    fn pki(&self) -> Arc<Pki> {
        Arc::clone(&self.pki.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Writes the kubeconfigs of the administrator and of the node.
    ///
    /// # Errors
    /// Says which file and why.
    pub fn write_kubeconfigs(&self) -> Result<(), Error> {
        let pki = self.pki();
        for (path, user, pair) in [
            (&pki_dir(&self.config).join("node.kubeconfig"), "node", &pki.node),
            (&self.config.admin_kubeconfig, "admin", &pki.admin),
        ] {
            pki::write_private(path, &self.kubeconfig(user, pair))?;
        }
        pki::share_with_group(&self.config.admin_kubeconfig)?;
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

    /// The authority's certificate.
    #[must_use]
    pub fn ca_pem(&self) -> String {
        self.pki().ca_pem.clone()
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

    fn kubeconfig(&self, user: &str, pair: &Pair) -> String {
        let first = self.config.listen.first().map(SocketAddr::ip);
        let host = first.filter(|ip| !ip.is_unspecified()).unwrap_or(self.config.advertise);
        let server = format!("https://{}", SocketAddr::new(host, self.port()));
        pki::kubeconfig(&server, &self.ca_pem(), user, pair)
    }

    /// Objects that every cluster has.
    async fn bootstrap(&self) -> Result<(), Error> {
        let client = self.client(UserInfo::internal("system:apiserver"));
        let namespaces: KubeApi<Namespace> = KubeApi::all(client.clone());
        for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            create(&namespaces, json!({"metadata": {"name": name}}), &format!("namespace {name}")).await?;
        }
        let first = Ipv4Addr::from_bits(self.config.service_cidr.0.to_bits() + 1).to_string();
        let services: KubeApi<Service> = KubeApi::namespaced(client.clone(), "default");
        let labels = json!({"component": "apiserver", "provider": "kubernetes"});
        let port = json!({"name": "https", "port": 443, "protocol": "TCP", "targetPort": self.port()});
        let service = json!({"metadata": {"name": "kubernetes", "labels": labels}, "spec": {"clusterIP": first, "ports": [port]}});
        create(&services, service, "the kubernetes service").await?;
        let slices: KubeApi<EndpointSlice> = KubeApi::namespaced(client, "default");
        let slice = json!({
            "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes", "endpointslice.kubernetes.io/managed-by": "windlass"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [self.config.advertise.to_string()], "conditions": {"ready": true}}],
            "ports": [{"name": "https", "port": self.port(), "protocol": "TCP"}],
        });
        create(&slices, slice.clone(), "the kubernetes endpoints").await?;
        let failed =
            |source| Error::Bootstrap { what: "the kubernetes endpoints".to_owned(), source: Box::new(source) };
        // The address may have changed since they were made.
        slices.patch("kubernetes", &PatchParams::default(), &Patch::Merge(slice)).await.map_err(failed)?;
        let _ = slices.list(&ListParams::default().limit(1)).await.map_err(failed)?;
        Ok(())
    }
}

async fn create<K>(api: &KubeApi<K>, object: Value, what: &str) -> Result<(), Error>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let failed = |source| Error::Bootstrap { what: what.to_owned(), source: Box::new(source) };
    let object: K = serde_json::from_value(object).map_err(|e| failed(kube::Error::SerdeError(e)))?;
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

/// What is to be done with a data folder.
#[derive(Debug, PartialEq, Eq)]
enum Folder {
    /// Nothing is in it: a cluster begins.
    New,
    /// A cluster began, and the start was interrupted before the folder was marked.
    Begun,
    /// A cluster lives in it.
    Ours,
}

/// Judges a folder by what it holds. One that is marked holds a cluster, whose store must be there: an empty one in its place
/// would be another cluster, and the agent would remove the pods of this one.
fn judge(marked: bool, names: &[String]) -> Result<Folder, String> {
    let begun = ["store.new", "windlass-data.new"];
    let has_store = names.iter().any(|name| name == STORE);
    // A file system of its own comes with that folder.
    let other = names.iter().find(|n| *n != "lost+found" && *n != STORE && !begun.contains(&n.as_str()));
    match (marked, has_store, other) {
        (true, true, _) => Ok(Folder::Ours),
        (true, false, _) => Err(format!(
            "it holds a cluster whose {STORE} is missing; nothing was touched; put a copy of the file back, or, to give up the cluster and all that is in it, run windlass down --purge"
        )),
        (false, _, Some(other)) => Err(format!(
            "it holds {other:?} and is not a data folder of windlass; nothing was touched; give another one with --data-dir"
        )),
        (false, true, None) => Ok(Folder::Begun),
        (false, false, None) => Ok(Folder::New),
    }
}

/// Opens the store of a folder that is ours, new or marked. Anything else is left alone.
fn claim(dir: &Path) -> Result<Disk, Error> {
    use std::os::unix::fs::DirBuilderExt as _;
    let refuse = |reason: String| Error::DataDir { path: dir.to_owned(), reason };
    let failed = |error: std::io::Error| refuse(error.to_string());
    let (mark, store) = (dir.join(MARK), dir.join(STORE));
    let names: Vec<String> = match fs::read_dir(dir) {
        Ok(entries) => {
            let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
            names.collect::<std::io::Result<_>>().map_err(failed)?
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
            if let Some(parent) = dir.parent().filter(|p| !p.as_os_str().is_empty()) {
                fs::File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed)?;
            }
            Vec::new()
        }
        Err(error) => return Err(failed(error)),
    };
    let marked = is_data_dir(dir);
    if marked {
        let layout = fs::read_to_string(&mark).map_err(failed)?;
        if layout != LAYOUT {
            return Err(refuse(format!(
                "its layout is {:?} and this program knows {:?}; use the program that wrote it, or a newer one",
                layout.trim(),
                LAYOUT.trim()
            )));
        }
    }
    let disk = match judge(marked, &names).map_err(refuse)? {
        Folder::New => Disk::create(&store)?,
        Folder::Begun | Folder::Ours => Disk::open(&store)?,
    };
    if !marked {
        // Last, so that a marked folder always has its store.
        pki::write_private(&mark, LAYOUT)?;
    }
    Ok(disk)
}

fn pki_dir(config: &Config) -> PathBuf {
    config.data_dir.join("pki")
}

fn pems(pair: &Pair, pki: &Pki) -> Pems {
    Pems { cert: pair.cert_pem.clone(), key: pair.key_pem.clone(), client_ca: pki.ca_pem.clone() }
}

/// TLS toward nodes: their certificates are of our authority, and we show ours.
fn client_tls(pki: &Pki) -> Result<ClientConfig, Error> {
    use rustls_pki_types::{PrivateKeyDer, pem::PemObject as _};
    let wrong = |e: &dyn std::fmt::Display| Error::Serve(ServeError::Certificate(e.to_string()));
    let mut roots = RootCertStore::empty();
    for certificate in serve::certificates(&pki.ca_pem)? {
        roots.add(certificate).map_err(|e| wrong(&e))?;
    }
    let chain = serve::certificates(&pki.kubelet_client.cert_pem)?;
    let key = PrivateKeyDer::from_pem_slice(pki.kubelet_client.key_pem.as_bytes()).map_err(|e| wrong(&e))?;
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| wrong(&e))?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|e| wrong(&e))
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    /// The certificate that a server shows to a client that trusts the authority.
    async fn shown(pki: &Pki, address: SocketAddr) -> Vec<u8> {
        let connector = tokio_rustls::TlsConnector::from(Arc::new(client_tls(pki).expect("the client's TLS")));
        let stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
        let stream = connector.connect(address.ip().into(), stream).await.expect("a handshake");
        let (_, session) = stream.get_ref();
        session.peer_certificates().and_then(<[_]>::first).expect("a certificate").to_vec()
    }

    #[test]
    fn a_folder_of_a_newer_program_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("data");
        drop(claim(&folder).unwrap());
        drop(claim(&folder).unwrap());
        fs::write(folder.join(MARK), "2\n").unwrap();
        let said = claim(&folder).unwrap_err().to_string();
        assert!(said.contains("layout is \"2\"") && said.contains("a newer one"), "{said}");
        assert_eq!(fs::read_to_string(folder.join(MARK)).unwrap(), "2\n");
    }

    #[test]
    fn a_file_system_of_its_own_is_a_data_folder_and_another_folder_is_none() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("lost+found")).unwrap();
        drop(claim(dir.path()).unwrap());
        let foreign = dir.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("letter"), "").unwrap();
        let said = claim(&foreign).unwrap_err().to_string();
        assert!(said.contains("letter") && said.contains("nothing was touched"), "{said}");
        assert!(!foreign.join(MARK).exists());
    }

    #[test]
    fn a_cluster_without_its_store_is_refused_and_an_interrupted_beginning_goes_on() {
        let held = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        for names in
            [&["windlass-data"][..], &["windlass-data", "pki"], &["windlass-data", "pods", "lost+found", "store.new"]]
        {
            let said = judge(true, &held(names)).unwrap_err();
            assert!(said.contains("store.redb is missing") && said.contains("down --purge"), "{said}");
        }
        assert!(judge(false, &held(&["pki"])).unwrap_err().contains("pki"));
        assert!(judge(false, &held(&["pki", "store.redb"])).unwrap_err().contains("pki"));
        assert_eq!(judge(false, &held(&["lost+found", "store.new"])), Ok(Folder::New));
        assert_eq!(judge(false, &held(&["store.redb", "windlass-data.new"])), Ok(Folder::Begun));
        assert_eq!(judge(true, &held(&["store.redb", "pki", "windlass-data"])), Ok(Folder::Ours));

        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("data");
        drop(claim(&folder).unwrap());
        fs::create_dir(folder.join("pki")).unwrap();
        let kept = fs::read(folder.join(STORE)).unwrap();
        fs::remove_file(folder.join(STORE)).unwrap();
        let said = claim(&folder).unwrap_err().to_string();
        assert!(said.contains("store.redb is missing") && !folder.join(STORE).exists(), "{said}");
        fs::write(folder.join(STORE), kept).unwrap();
        drop(claim(&folder).unwrap());
        // As after an end between the store and the mark, and before the store was whole.
        fs::remove_dir(folder.join("pki")).unwrap();
        fs::remove_file(folder.join(MARK)).unwrap();
        drop(claim(&folder).unwrap());
        assert!(is_data_dir(&folder));
        let interrupted = dir.path().join("interrupted");
        fs::create_dir(&interrupted).unwrap();
        fs::write(interrupted.join("store.new"), "half").unwrap();
        drop(claim(&interrupted).unwrap());
        assert!(is_data_dir(&interrupted) && !interrupted.join("store.new").exists());
    }

    #[tokio::test]
    async fn a_server_shows_renewed_certificates_without_a_new_start() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config {
            data_dir: dir.path().join("data"),
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            advertise: "127.0.0.1".parse().unwrap(),
            cluster_domain: "cluster.local".into(),
            service_cidr: (Ipv4Addr::new(10, 96, 0, 0), 16),
            node_ports: 30000..=32767,
            max_token_seconds: None,
            node_name: "n".into(),
            node_addresses: vec!["127.0.0.1".parse().unwrap()],
            admin_kubeconfig: dir.path().join("admin.kubeconfig"),
            // Every look finds them about to end.
            lifetimes: Lifetimes { leaf: SignedDuration::from_hours(1), renew_before: SignedDuration::from_hours(2) },
        };
        let kubeconfig = config.admin_kubeconfig.clone();
        let plane = ControlPlane::open(config).await.unwrap();
        plane.write_kubeconfigs().unwrap();
        let listeners = plane.listen().await.unwrap();
        let address = listeners[0].local_addr().unwrap();
        let stop = CancellationToken::new();
        let server = tokio::spawn({
            let (plane, stop) = (plane.clone(), stop.clone());
            async move { plane.serve(listeners, stop).await }
        });
        let (first, first_file) = (shown(&plane.pki(), address).await, fs::read(&kubeconfig).unwrap());
        assert_eq!(first, shown(&plane.pki(), address).await);
        let before = plane.node_tls().ends_at();
        assert!(plane.renew_once().unwrap());
        assert_ne!(first, shown(&plane.pki(), address).await);
        assert_ne!(first_file, fs::read(&kubeconfig).unwrap());
        assert!(plane.node_tls().ends_at() >= before);
        stop.cancel();
        server.await.unwrap().unwrap();
    }
}
