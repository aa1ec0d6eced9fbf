//! The pure parts by tables, and the loop against an API that speaks just enough HTTP.

mod faults;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    sync::Arc,
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
    routing::get,
};
use k8s_openapi::{ByteString, api::certificates::v1::CertificateSigningRequest};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, CertificateSigningRequestParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_fixtures::files;

use super::{
    request::{RequestStatus, SigningRequest, advice, status_of},
    rotation::{Next, next_step, preferred, retry_delay},
    store::Store,
    *,
};
use crate::metrics::Metrics;

const DAY: i64 = 86_400;
const TIMEOUT: Duration = Duration::from_secs(30);

fn wanted(node: &str) -> CertificateTemplate {
    CertificateTemplate::client(node)
}

fn serving(names: &[&str], addresses: &[&str]) -> CertificateTemplate {
    CertificateTemplate {
        purpose: Purpose::Serving,
        names: names.iter().map(|n| (*n).to_owned()).collect(),
        addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        ..CertificateTemplate::client("n1")
    }
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Signs what a request asks for, for a time in seconds since 1970.
fn signed(csr: &str, not_before: i64, not_after: i64) -> String {
    let mut asked = CertificateSigningRequestParams::from_pem(csr).unwrap();
    asked.params.not_before = time::OffsetDateTime::from_unix_timestamp(not_before).unwrap();
    asked.params.not_after = time::OffsetDateTime::from_unix_timestamp(not_after).unwrap();
    asked.signed_by(&authority()).unwrap().pem()
}

fn pair(wanted: &CertificateTemplate, not_before: i64, not_after: i64) -> CertifiedKey {
    let request = SigningRequest::new(wanted).unwrap();
    CertifiedKey { cert: signed(&request.csr, not_before, not_after), key: request.key }
}

#[test]
fn requests_ask_for_just_what_signers_sign() {
    let request = SigningRequest::new(&wanted("n1")).unwrap();
    let object = request.object(&wanted("n1"));
    assert_eq!(object.spec.signer_name, "kubernetes.io/kube-apiserver-client-kubelet");
    assert_eq!(object.spec.usages.unwrap(), ["digital signature", "client auth"]);
    let asked = CertificateSigningRequestParams::from_pem(&request.csr).unwrap();
    assert!(asked.params.subject_alt_names.is_empty());
    assert!(asked.params.key_usages.is_empty() && asked.params.extended_key_usages.is_empty());
    let made = pair(&wanted("n1"), 0, 10);
    assert_eq!(made.user().as_deref(), Some("system:node:n1"));

    let wanted = serving(&["n1"], &["10.0.0.1", "fd00::1"]);
    let object = SigningRequest::new(&wanted).unwrap().object(&wanted);
    assert_eq!(object.spec.signer_name, "kubernetes.io/kubelet-serving");
    assert_eq!(object.spec.usages.unwrap(), ["digital signature", "server auth"]);
    assert!(pair(&wanted, 0, 10).check(&wanted, 5).is_ok());
}

#[test]
fn a_request_is_the_same_after_a_crash_and_another_for_another_wish() {
    let one = serving(&["n1"], &["10.0.0.1"]);
    let request = SigningRequest::new(&one).unwrap();
    let again = SigningRequest::parse_pending(&request.text(), &one).unwrap();
    assert_eq!(again.name(Purpose::Serving), request.name(Purpose::Serving));
    assert_ne!(SigningRequest::new(&one).unwrap().name(Purpose::Serving), request.name(Purpose::Serving));
    for other in [
        serving(&["n1"], &["10.0.0.2"]),
        serving(&["n1", "n2"], &["10.0.0.1"]),
        serving(&[], &["10.0.0.1"]),
        CertificateTemplate { node: "n2".to_owned(), ..one.clone() },
    ] {
        assert_eq!(SigningRequest::parse_pending(&request.text(), &other), None, "{other:?}");
    }
    let foreign = SigningRequest { key: SigningRequest::new(&one).unwrap().key, ..request.clone() };
    for torn in ["", "-----BEGIN PRIVATE KEY-----\n", &request.text()[..200], &request.csr, &foreign.text()] {
        assert_eq!(SigningRequest::parse_pending(torn, &one), None);
    }
}

/// kubelet's own file is in the form of Go, and kubeadm's and openssl's keys are in others still: all are rotated, while their
/// own certificate is good.
#[test]
fn keys_of_every_form_are_rotated_by_their_own_certificate() {
    let now = 2_000_000_000;
    for name in [
        "go-p256-sec1",
        "go-p256-pkcs8",
        "go-p384-sec1",
        "go-rsa-pkcs1",
        "go-rsa-pkcs8",
        "go-ed25519-pkcs8",
        "openssl-p256-ecparam",
        "openssl-p384-sec1",
        "openssl-p256-pkcs8",
        "openssl-rsa-pkcs1",
        "openssl-rsa-pkcs8",
        "openssl-ed25519-pkcs8",
    ] {
        let text = files::key(&format!("{name}.pem"));
        let pair = CertifiedKey::from_pem(&text).unwrap();
        let life = pair.check(&wanted("n1"), now).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert!(matches!(next_step(Some(&pair), &wanted("n1"), true, 0.5, now), Next::Wait(_)), "{name}");
        let late = life.not_after - 1;
        assert_eq!(
            next_step(Some(&pair), &wanted("n1"), true, 0.5, late),
            Next::Request("it expires soon".to_owned()),
            "{name}"
        );
    }
    // The parameters that openssl writes in front of a key are no part of the chain, wherever they stand.
    let text = files::key("openssl-p256-ecparam.pem");
    let (cert, key) = text.split_at(text.find("-----BEGIN EC PARAMETERS").unwrap());
    assert!(CertifiedKey::from_pem(&format!("{key}{cert}")).unwrap().check(&wanted("n1"), now).is_ok());
}

#[test]
fn certificates_are_judged_by_whose_they_are_and_when() {
    let good = pair(&wanted("n1"), 100, 200);
    assert_eq!(good.check(&wanted("n1"), 150), Ok(Validity { not_before: 100, not_after: 200 }));
    assert_eq!(good.check(&wanted("n1"), 203), Err(CertificateError::Expired(3)));
    assert_eq!(good.check(&wanted("n1"), 98), Err(CertificateError::NotYetValid(2)));
    assert!(CertificateError::NotYetValid(2).to_string().contains("clock"));
    assert!(matches!(good.check(&wanted("n2"), 150), Err(CertificateError::WrongSubject { .. })));
    let swapped = CertifiedKey { key: SigningRequest::new(&wanted("n1")).unwrap().key, ..good.clone() };
    assert!(matches!(swapped.check(&wanted("n1"), 150), Err(CertificateError::Malformed(_))));
    assert!(matches!(
        CertifiedKey { cert: "nonsense".into(), ..good.clone() }.check(&wanted("n1"), 150),
        Err(CertificateError::Malformed(_))
    ));
    assert_eq!(
        CertifiedKey::from_pem(&good.text()).unwrap().check(&wanted("n1"), 150),
        Ok(Validity { not_before: 100, not_after: 200 })
    );
    assert!(
        CertifiedKey::from_pem(&good.cert).is_err()
            && CertifiedKey::from_pem(&good.key).is_err()
            && CertifiedKey::from_pem("").is_err()
    );
    // Names that are gone are no harm; those that came are.
    let two = pair(&serving(&["n1", "old"], &["10.0.0.1", "10.0.0.2"]), 100, 200);
    assert!(two.check(&serving(&["n1"], &["10.0.0.2"]), 150).is_ok());
    assert_eq!(
        two.check(&serving(&["n1"], &["10.0.0.3"]), 150),
        Err(CertificateError::MissingNames("10.0.0.3".into()))
    );
}

#[test]
fn renewal_comes_between_seven_and_nine_tenths_of_the_life() {
    let life = 1000;
    let current = pair(&wanted("n1"), 0, life);
    for chance in [0.0, 0.3, 1.0] {
        let Next::Wait(at) = next_step(Some(&current), &wanted("n1"), true, chance, 1) else { panic!("it is good") };
        assert!((700..=900).contains(&at), "{at}");
        assert!(matches!(next_step(Some(&current), &wanted("n1"), true, chance, at), Next::Request(_)));
        assert_eq!(next_step(Some(&current), &wanted("n1"), false, chance, at), Next::Keep);
        assert!(
            matches!(next_step(Some(&current), &wanted("n1"), false, chance, life + 1), Next::Request(_)),
            "it is over"
        );
    }
    assert!(matches!(next_step(None, &wanted("n1"), false, 0.5, 1), Next::Request(_)));
    assert!(matches!(next_step(Some(&current), &wanted("n2"), true, 0.5, 1), Next::Request(_)));
    // A clock that is behind does not make requests.
    let ahead = pair(&wanted("n1"), 500, 1000);
    assert_eq!(next_step(Some(&ahead), &wanted("n1"), true, 0.5, 10), Next::Wait(500));
}

#[test]
fn the_better_of_two_is_the_good_one_and_then_the_one_that_ends_later() {
    let want = wanted("n1");
    // The new one begins before the old one: signers put the beginning back.
    let [old, new, over, other] =
        [pair(&want, 10, 100), pair(&want, 5, 160), pair(&want, 20, 40), pair(&wanted("n2"), 30, 200)];
    for (one, two, best) in [(&old, &new, &new), (&over, &new, &new), (&other, &old, &old)] {
        assert_eq!(preferred(Some(one.clone()), Some(two.clone()), &want, 50).as_ref(), Some(best));
        assert_eq!(preferred(Some(two.clone()), Some(one.clone()), &want, 50).as_ref(), Some(best));
    }
    assert_eq!(preferred(None, Some(old.clone()), &want, 50), Some(old));
    assert_eq!(preferred(None, None, &want, 50), None);
}

#[test]
fn tries_come_ever_more_seldom_and_refusals_even_more() {
    let seconds = |denied| (0..9).map(|n| retry_delay(n, denied, 0.0).as_secs()).collect::<Vec<_>>();
    assert_eq!(seconds(false), [2, 4, 8, 16, 32, 32, 32, 32, 32]);
    assert_eq!(seconds(true), [2, 4, 8, 16, 32, 64, 128, 256, 300]);
    assert_eq!(retry_delay(0, false, 1.0), Duration::from_millis(2200));
}

#[test]
fn what_came_of_a_request() {
    let request = SigningRequest::new(&wanted("n1")).unwrap();
    let object = |status: Value| {
        let mut object = request.object(&wanted("n1"));
        object.status = serde_json::from_value(status).unwrap();
        object
    };
    let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "Because", "message": "of it"});
    for (status, verdict) in [
        (Value::Null, RequestStatus::Pending),
        (json!({}), RequestStatus::Pending),
        (json!({"conditions": [condition("Approved")]}), RequestStatus::Approved),
        (json!({"conditions": [condition("Denied")]}), RequestStatus::Denied("it was denied: Because: of it".into())),
        (
            json!({"conditions": [condition("Approved"), condition("Failed")]}),
            RequestStatus::Denied("it was approved, but not signed: Because: of it".into()),
        ),
        (
            json!({"conditions": [condition("Approved")], "certificate": "UEVN"}),
            RequestStatus::Issued(CertifiedKey { cert: "PEM".into(), key: request.key.clone() }),
        ),
    ] {
        assert_eq!(status_of(&request, &object(status.clone())), verdict, "{status}");
    }
    let other = SigningRequest::new(&wanted("n1")).unwrap();
    assert_eq!(status_of(&request, &other.object(&wanted("n1"))), RequestStatus::Foreign);
    for (purpose, first, words) in [
        (Purpose::Client, true, "certificatesigningrequests:nodeclient"),
        (Purpose::Client, false, "certificatesigningrequests:selfnodeclient --group=system:nodes"),
        (Purpose::Serving, false, "kubectl certificate approve csr-1"),
    ] {
        assert!(advice("csr-1", purpose, first).contains(words));
    }
}

#[test]
fn files_are_upstreams_and_three_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("pki");
    let store = Store::new(&dir, Purpose::Client);
    assert_eq!(store.current().unwrap(), None);
    let pairs: Vec<CertifiedKey> = (0..5).map(|n| pair(&wanted("n1"), n, 100)).collect();
    for (day, pair) in (1..).zip(&pairs) {
        store.save(pair, &jiff::civil::date(2026, 11, day).at(1, 2, 3, 0)).unwrap();
        assert_eq!(store.current().unwrap().unwrap().text(), pair.text());
    }
    let mut names: Vec<String> =
        fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "kubelet-client-2026-11-03-01-02-03.pem",
            "kubelet-client-2026-11-04-01-02-03.pem",
            "kubelet-client-2026-11-05-01-02-03.pem",
            "kubelet-client-current.pem",
        ]
    );
    let newest = dir.join("kubelet-client-2026-11-05-01-02-03.pem");
    assert_eq!(fs::read_link(store.current_path()).unwrap(), newest);
    assert_eq!(fs::metadata(&newest).unwrap().permissions().mode() & 0o777, 0o600);
    // A crash between the new link and its renaming.
    fs::rename(store.current_path(), dir.join("kubelet-client-updated.pem")).unwrap();
    assert_eq!(store.current().unwrap().unwrap().text(), pairs[4].text());
    // A new link next to the old one is one that was never taken.
    symlink(&newest, dir.join("kubelet-client-updated.pem")).unwrap();
    store.save(&pairs[0], &jiff::civil::date(2026, 11, 6).at(1, 2, 3, 0)).unwrap();
    assert_eq!(store.current().unwrap().unwrap().text(), pairs[0].text());
    fs::remove_file(store.current_path()).unwrap();
    fs::write(store.current_path(), pairs[0].text()).unwrap();
    assert!(store.current().unwrap_err().to_string().contains("should be a link"));
}

#[test]
fn the_self_signed_certificate_stays_while_it_fits() {
    let dir = tempfile::tempdir().unwrap();
    let one = serving(&["n1"], &["10.0.0.1"]);
    let first = self_signed(dir.path(), &one).unwrap();
    let now = jiff::Timestamp::now().as_second();
    assert!(first.check(&one, now).unwrap().not_after > now + 300 * DAY);
    assert_eq!(self_signed(dir.path(), &one).unwrap(), first);
    let two = serving(&["n1"], &["10.0.0.1", "fd00::2"]);
    let second = self_signed(dir.path(), &two).unwrap();
    assert!(second.check(&two, now).is_ok());
    fs::remove_file(dir.path().join("kubelet.key")).unwrap();
    assert_ne!(self_signed(dir.path(), &two).unwrap(), second);
    assert_eq!(fs::metadata(dir.path().join("kubelet.key")).unwrap().permissions().mode() & 0o777, 0o600);
}

/// A fake API that serves certificate signing requests and decides each one as configured.
#[derive(Clone, Default)]
struct Signer {
    objects: Arc<Mutex<BTreeMap<String, Value>>>,
    /// What is done with a new request: nothing, `sign`, `deny`.
    mode: Arc<Mutex<&'static str>>,
    sent: Arc<Mutex<Vec<String>>>,
}

impl Signer {
    fn client(&self) -> Client {
        let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
        let router = Router::new()
            .route(path, get(Self::list).post(Self::create))
            .route(&format!("{path}/{{name}}"), get(Self::read))
            .with_state(self.clone());
        Client::new(router, "default")
    }

    fn clients(&self) -> ClientProvider {
        let signer = self.clone();
        Box::new(move |_| {
            let client = signer.client();
            Box::pin(async move { Ok(client) })
        })
    }

    fn decide(&self, name: &str, mode: &str) {
        let mut objects = self.objects.lock();
        let Some(object) = objects.get_mut(name) else { return };
        let now = jiff::Timestamp::now().as_second();
        match mode {
            "sign" | "sign short" => {
                let not_after = if mode == "sign" { now + DAY } else { now + 20 };
                let read: CertificateSigningRequest = serde_json::from_value(object.clone()).unwrap();
                let csr = String::from_utf8(read.spec.request.0).unwrap();
                let cert = ByteString(signed(&csr, now - 300, not_after).into_bytes());
                object["status"] = json!({"conditions": [{"type": "Approved", "status": "True"}], "certificate": cert});
            }
            "deny" => object["status"] = json!({"conditions": [{"type": "Denied", "status": "True"}]}),
            _ => {}
        }
    }

    async fn create(State(signer): State<Self>, Json(mut object): Json<Value>) -> Response {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        signer.sent.lock().push(name.clone());
        if signer.objects.lock().contains_key(&name) {
            let status = json!({"kind": "Status", "apiVersion": "v1", "code": 409, "reason": "AlreadyExists", "status": "Failure", "message": ""});
            return (StatusCode::CONFLICT, Json(status)).into_response();
        }
        object["metadata"]["resourceVersion"] = json!("1");
        signer.objects.lock().insert(name.clone(), object.clone());
        let mode = *signer.mode.lock();
        signer.decide(&name, mode);
        (StatusCode::CREATED, Json(object)).into_response()
    }

    async fn read(State(signer): State<Self>, Path(name): Path<String>) -> Json<Value> {
        Json(signer.objects.lock()[&name].clone())
    }

    /// Lists; a watch ends after a moment and says that it is too old, so that it begins with a list again.
    async fn list(State(signer): State<Self>, uri: axum::http::Uri) -> Response {
        let query = uri.query().unwrap_or_default();
        if query.contains("watch=true") {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let gone = json!({"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired", "status": "Failure", "message": "too old"});
            return Json(json!({"type": "ERROR", "object": gone})).into_response();
        }
        let objects = signer.objects.lock();
        let items: Vec<&Value> =
            objects.iter().filter(|(name, _)| query.contains(name.as_str())).map(|(_, o)| o).collect();
        let list = json!({"kind": "CertificateSigningRequestList", "apiVersion": "certificates.k8s.io/v1", "metadata": {"resourceVersion": "1"}, "items": items});
        Json(list).into_response()
    }
}

/// A manager that runs.
struct Running {
    pairs: watch::Receiver<Option<CertifiedKey>>,
    standing: watch::Receiver<CertificateState>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    _wanted: watch::Sender<Option<CertificateTemplate>>,
}

fn run(signer: &Signer, dir: &std::path::Path) -> Running {
    let manager =
        CertificateManager::open(dir, Purpose::Client, signer.clients(), true, Arc::new(Metrics::default())).unwrap();
    let (pairs, standing, stop) = (manager.pairs(), manager.state(), CancellationToken::new());
    let (tell, wanted) = watch::channel(Some(wanted("n1")));
    let (_, given) = watch::channel(None);
    let task = tokio::spawn(manager.run(wanted, given, stop.clone()));
    Running { pairs, standing, stop, task, _wanted: tell }
}

impl Running {
    async fn until(&mut self, what: impl FnMut(&CertificateState) -> bool) -> CertificateState {
        tokio::time::timeout(TIMEOUT, self.standing.wait_for(what)).await.expect("it stands still").unwrap().clone()
    }
}

#[tokio::test]
async fn a_certificate_is_asked_for_once_and_kept() {
    let (signer, dir) = (Signer::default(), tempfile::tempdir().unwrap());
    *signer.mode.lock() = "sign";
    let mut running = run(&signer, dir.path());
    running.until(|s| matches!(s, CertificateState::Valid { .. })).await;
    let pair = running.pairs.borrow().clone().unwrap();
    assert!(pair.check(&wanted("n1"), jiff::Timestamp::now().as_second()).is_ok());
    assert!(!dir.path().join("kubelet-client-pending.pem").exists());
    // Another process asks for nothing.
    running.stop.cancel();
    running.task.await.unwrap();
    let mut again = run(&signer, dir.path());
    again.until(|s| matches!(s, CertificateState::Valid { .. })).await;
    assert_eq!(again.pairs.borrow().clone().unwrap().text(), pair.text());
    assert_eq!(signer.sent.lock().len(), 1);
}

/// What is over as soon as it is issued is not asked for in a loop.
#[tokio::test]
async fn a_signer_of_short_lives_is_not_flooded() {
    let (signer, dir) = (Signer::default(), tempfile::tempdir().unwrap());
    *signer.mode.lock() = "sign short";
    let mut running = run(&signer, dir.path());
    running.until(|s| matches!(s, CertificateState::Valid { .. })).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(signer.sent.lock().len(), 1);
}

#[tokio::test]
async fn a_crash_while_a_request_waits_makes_no_second_one() {
    let (signer, dir) = (Signer::default(), tempfile::tempdir().unwrap());
    for _ in 0..3 {
        let mut running = run(&signer, dir.path());
        running.until(|s| matches!(s, CertificateState::Requested(_))).await;
        running.task.abort();
        assert!(running.task.await.is_err());
    }
    let mut running = run(&signer, dir.path());
    let CertificateState::Requested(name) = running.until(|s| matches!(s, CertificateState::Requested(_))).await else {
        panic!()
    };
    assert_eq!(signer.objects.lock().len(), 1);
    signer.decide(&name, "sign");
    running.until(|s| matches!(s, CertificateState::Valid { .. })).await;
    assert_eq!(signer.objects.lock().len(), 1);
}

#[tokio::test]
async fn what_was_denied_or_deleted_is_asked_for_again_with_another_key() {
    let (signer, dir) = (Signer::default(), tempfile::tempdir().unwrap());
    *signer.mode.lock() = "deny";
    let mut running = run(&signer, dir.path());
    let CertificateState::Failed { reason, .. } = running.until(|s| matches!(s, CertificateState::Failed { .. })).await
    else {
        panic!()
    };
    assert!(reason.contains("it was denied"), "{reason}");
    *signer.mode.lock() = "";
    running.until(|s| matches!(s, CertificateState::Requested(_))).await;
    let second = signer.sent.lock().last().unwrap().clone();
    signer.objects.lock().remove(&second);
    let CertificateState::Failed { reason, .. } = running.until(|s| matches!(s, CertificateState::Failed { .. })).await
    else {
        panic!()
    };
    assert!(reason.contains("was deleted"), "{reason}");
    *signer.mode.lock() = "sign";
    running.until(|s| matches!(s, CertificateState::Valid { .. })).await;
    let sent = signer.sent.lock().clone();
    assert_eq!(sent.iter().collect::<std::collections::BTreeSet<_>>().len(), 3, "{sent:?}");
}
