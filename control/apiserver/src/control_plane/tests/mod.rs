mod cluster;
#[path = "../../../tests/config/mod.rs"]
pub(crate) mod config;
mod credentials;
mod deployments;
mod disruption;
mod endpoints;
mod horizontal_pod_autoscalers;
mod jobs;
mod metrics;
mod sample_apiserver;
mod stateful_and_daemon_sets;
mod volumes;

use std::{fs, net::SocketAddr, path::Path, sync::Arc};

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api as KubeApi, Client,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{certificates::client_tls, *};
use config::config;

/// A control plane that serves at a free port.
struct Served {
    plane: ControlPlane,
    address: SocketAddr,
    stop: CancellationToken,
    server: JoinHandle<()>,
}

impl Served {
    async fn new(folder: &Path, lifetimes: Lifetimes) -> Self {
        Self::of(Config { lifetimes, ..config(folder) }).await
    }

    async fn of(config: Config) -> Self {
        let plane = ControlPlane::open(config).await.unwrap();
        plane.write_kubeconfigs().unwrap();
        let listeners = plane.listen().await.unwrap();
        let address = listeners[0].local_addr().unwrap();
        let stop = CancellationToken::new();
        let server = tokio::spawn({
            let (plane, stop) = (plane.clone(), stop.clone());
            async move { plane.serve(listeners, stop).await }
        });
        Self { plane, address, stop, server }
    }

    /// The administrator's kubeconfig, with the port that the API got.
    fn kubeconfig(&self) -> String {
        let text = fs::read_to_string(&self.plane.config.admin_kubeconfig).unwrap();
        text.replace("https://127.0.0.1:0\n", &format!("https://{}\n", self.address))
    }

    async fn end(self) {
        self.stop.cancel();
        self.server.await.unwrap();
    }
}

/// The certificate that a server shows to a client that trusts the authority.
async fn served_certificate(pki: &Pki, address: SocketAddr) -> Vec<u8> {
    let connector = tokio_rustls::TlsConnector::from(Arc::new(client_tls(pki).expect("the client's TLS")));
    let stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
    let stream = connector.connect(address.ip().into(), stream).await.expect("a handshake");
    let (_, session) = stream.get_ref();
    session.peer_certificates().and_then(<[_]>::first).expect("a certificate").to_vec()
}

/// Asks for what only the administrator may see.
async fn works(kubeconfig: &str) {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    let namespaces: KubeApi<Namespace> = KubeApi::all(Client::try_from(config).unwrap());
    assert!(!namespaces.list(&ListParams::default()).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn renewed_certificates_are_served_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    // Every look finds them about to end.
    let lifetimes = Lifetimes {
        leaf: SignedDuration::from_hours(1),
        renew_before: SignedDuration::from_hours(2),
        ..Lifetimes::default()
    };
    let served = Served::new(dir.path(), lifetimes).await;
    let (plane, address) = (&served.plane, served.address);
    let (first, first_file) = (served_certificate(&plane.pki(), address).await, served.kubeconfig());
    assert_eq!(first, served_certificate(&plane.pki(), address).await);
    let before = plane.node_tls().ends_at();
    assert!(plane.renew_once().unwrap());
    assert_ne!(first, served_certificate(&plane.pki(), address).await);
    assert_ne!(first_file, served.kubeconfig());
    assert!(plane.node_tls().ends_at() >= before);
    served.end().await;
}

/// The disk refuses the kubeconfig of a renewed certificate: the next look writes it, though nothing is renewed then.
#[tokio::test]
async fn a_kubeconfig_that_could_not_be_written_is_written_later() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::new(dir.path(), Lifetimes::default()).await;
    let (plane, file) = (&served.plane, served.plane.config.admin_kubeconfig.clone());
    assert!(!plane.renew_once().unwrap(), "nothing is about to end");
    fs::remove_file(dir.path().join("data/pki/admin.crt")).unwrap();
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert!(plane.renew_once().is_err());
    fs::remove_dir(&file).unwrap();
    assert!(!plane.renew_once().unwrap());
    works(&served.kubeconfig()).await;
    served.end().await;
}

#[tokio::test]
async fn clients_of_the_old_and_the_renewed_ca_are_served() {
    let dir = tempfile::tempdir().unwrap();
    // Every look finds the authority's about to end, and no other.
    let lifetimes = Lifetimes {
        authority: SignedDuration::from_hours(1),
        authority_renew_before: SignedDuration::from_hours(2),
        renew_before: SignedDuration::ZERO,
        ..Lifetimes::default()
    };
    let served = Served::new(dir.path(), lifetimes).await;
    let plane = &served.plane;
    let (old, old_file, root_ca) = (plane.pki(), served.kubeconfig(), plane.root_ca());
    works(&old_file).await;
    assert!(plane.renew_once().unwrap());

    let new = plane.pki();
    assert_eq!(new.ca_pem.matches("BEGIN CERTIFICATE").count(), 2);
    assert!(new.ca_pem.ends_with(&old.ca_pem) && root_ca.has_changed().unwrap() && *root_ca.borrow() == new.ca_pem);
    assert_eq!(new.server.cert_pem, old.server.cert_pem, "nothing else has to be made again");
    let new_file = served.kubeconfig();
    assert_ne!(old_file, new_file);
    // What people copied away, what they copy now, and who trusts the new one alone.
    works(&old_file).await;
    works(&new_file).await;
    let alone = new.ca_pem.strip_suffix(&old.ca_pem).unwrap().to_owned();
    let trusting = Pki { ca_pem: alone, ..Pki::clone(&new) };
    let before = served_certificate(&trusting, served.address).await;

    // A certificate that is made from now on is good for who trusts the old one alone.
    fs::remove_file(dir.path().join("data/pki/apiserver.crt")).unwrap();
    assert!(plane.renew_once().unwrap());
    assert_ne!(before, served_certificate(&old, served.address).await);
    works(&old_file).await;
    served.end().await;
}

#[tokio::test]
async fn a_fresh_cluster_has_upstreams_objects_and_keeps_them() {
    let dir = tempfile::tempdir().unwrap();
    let advertise = "192.0.2.1".parse().unwrap();
    let listen = vec!["127.0.0.1:6443".parse().unwrap()];
    let plane = ControlPlane::open(Config { advertise, listen, ..config(dir.path()) }).await.unwrap();
    let read = |resource: &str, namespace: &str, name: &str| {
        let key = store::Key { namespace: namespace.to_owned(), name: name.to_owned() };
        plane.store.get(plane.store.resource(resource), &key).map(|object| object.value())
    };
    for (resource, namespace, name) in [
        ("namespaces", "", "kube-node-lease"),
        ("priorityclasses.scheduling.k8s.io", "", "system-node-critical"),
        ("priorityclasses.scheduling.k8s.io", "", "system-cluster-critical"),
        ("flowschemas.flowcontrol.apiserver.k8s.io", "", "exempt"),
        ("flowschemas.flowcontrol.apiserver.k8s.io", "", "service-accounts"),
        ("prioritylevelconfigurations.flowcontrol.apiserver.k8s.io", "", "catch-all"),
        ("configmaps", "kube-system", "extension-apiserver-authentication"),
        ("configmaps", "kube-system", "kube-apiserver-legacy-service-account-token-tracking"),
        ("services", "default", "kubernetes"),
        ("endpoints", "default", "kubernetes"),
        ("endpointslices.discovery.k8s.io", "default", "kubernetes"),
    ] {
        assert!(read(resource, namespace, name).is_some(), "{resource} {name}");
    }
    let cidr = read("servicecidrs.networking.k8s.io", "", "kubernetes").unwrap();
    assert_eq!(cidr["status"]["conditions"][0]["status"], "True", "{cidr}");
    let address = read("ipaddresses.networking.k8s.io", "", "10.96.0.1").unwrap();
    assert_eq!(address["spec"]["parentRef"]["name"], "kubernetes");
    let schema = read("flowschemas.flowcontrol.apiserver.k8s.io", "", "exempt").unwrap();
    assert_eq!(schema["status"]["conditions"][0]["reason"], "Found", "{schema}");

    // Another round finds nothing to do, and puts back what is gone.
    let revision = plane.store.revision();
    plane.bootstrap().await.unwrap();
    assert_eq!(plane.store.revision(), revision);
    let client = plane.client(User::api_server());
    let slices: KubeApi<k8s_openapi::api::discovery::v1::EndpointSlice> =
        KubeApi::namespaced(client.clone(), "default");
    slices.delete("kubernetes", &kube::api::DeleteParams::default()).await.unwrap();
    let addresses: KubeApi<k8s_openapi::api::networking::v1::IPAddress> = KubeApi::all(client);
    addresses.delete("10.96.0.1", &kube::api::DeleteParams::default()).await.unwrap();
    plane.bootstrap().await.unwrap();
    assert!(read("endpointslices.discovery.k8s.io", "default", "kubernetes").is_some());
    assert!(read("ipaddresses.networking.k8s.io", "", "10.96.0.1").is_some(), "as of a service of an earlier version");
}
