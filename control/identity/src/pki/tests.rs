use std::os::unix::fs::PermissionsExt as _;

use windlass_fixtures::files::{key_path, requests};

use super::*;

fn names(address: &str) -> Names {
    let address: IpAddr = address.parse().unwrap();
    Names {
        node: "n1".to_owned(),
        addresses: vec![address],
        node_addresses: vec![address],
        domain: "cluster.local".to_owned(),
    }
}

#[test]
fn certificates_stay_until_their_names_change() {
    let dir = tempfile::tempdir().unwrap();
    let first = Pki::open(dir.path(), &names("192.0.2.1"), Lifetimes::default()).unwrap();
    let again = Pki::open(dir.path(), &names("192.0.2.1"), Lifetimes::default()).unwrap();
    assert_eq!(
        (&first.ca_pem, &first.server.cert_pem, &first.admin.key_pem),
        (&again.ca_pem, &again.server.cert_pem, &again.admin.key_pem)
    );
    let moved = Pki::open(dir.path(), &names("192.0.2.2"), Lifetimes::default()).unwrap();
    assert_eq!(first.ca_pem, moved.ca_pem);
    assert_eq!(first.admin.cert_pem, moved.admin.cert_pem);
    assert_ne!(first.server.cert_pem, moved.server.cert_pem);
}

#[test]
fn private_files_are_private() {
    let dir = tempfile::tempdir().unwrap();
    let pki = dir.path().join("pki");
    Pki::open(&pki, &names("192.0.2.1"), Lifetimes::default()).unwrap();
    assert_eq!(std::fs::metadata(&pki).unwrap().permissions().mode() & 0o777, 0o700);
    for entry in std::fs::read_dir(&pki).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
    }
}

#[test]
fn a_kubeconfig_is_shared_by_the_set_group_id_bit() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("admin.kubeconfig");
    let mode = || std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
    write_private(&file, "key").unwrap();
    share_with_group(&file).unwrap();
    assert_eq!(mode(), 0o600);
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o2750)).unwrap();
    share_with_group(&file).unwrap();
    assert_eq!(mode(), 0o640);
}

#[test]
fn a_broken_authority_is_named_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    Pki::open(dir.path(), &names("192.0.2.1"), Lifetimes::default()).unwrap();
    std::fs::write(dir.path().join("ca.key"), "nonsense").unwrap();
    let error = Pki::open(dir.path(), &names("192.0.2.1"), Lifetimes::default()).unwrap_err().to_string();
    assert!(error.contains("ca.key"), "{error}");
    assert_eq!(std::fs::read_to_string(dir.path().join("ca.key")).unwrap(), "nonsense");
}

#[test]
fn certificates_are_renewed_before_they_expire() {
    let dir = tempfile::tempdir().unwrap();
    let open = |leaf: i64, renew_before: i64| {
        let lifetimes = Lifetimes {
            leaf: SignedDuration::from_hours(leaf),
            renew_before: SignedDuration::from_hours(renew_before),
            ..Lifetimes::default()
        };
        Pki::open(dir.path(), &names("192.0.2.1"), lifetimes).unwrap()
    };
    let first = open(10, 1);
    assert_eq!(open(10, 9).server.cert_pem, first.server.cert_pem);
    let renewed = open(10, 11);
    assert_eq!(renewed.ca_pem, first.ca_pem);
    for (old, new) in [
        (&first.server, &renewed.server),
        (&first.kubelet, &renewed.kubelet),
        (&first.admin, &renewed.admin),
        (&first.kubelet_client, &renewed.kubelet_client),
    ] {
        assert_ne!(old.cert_pem, new.cert_pem);
        assert_ne!(old.key_pem, new.key_pem);
    }
    assert_eq!(first.service_accounts.0, renewed.service_accounts.0, "tokens that are out there stay good");
}

/// The files of a directory with what they hold.
fn files_in(dir: &Path) -> std::collections::BTreeMap<PathBuf, String> {
    let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    entries.map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn an_incomplete_ca_is_refused() {
    for (gone, blamed, advice) in [
        (&["ca.crt"][..], "ca.crt", "put it back"),
        (&["ca.crt", "ca.key"], "ca.crt", "put both back"),
        (&["sa.key"], "sa.key", "put it back"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        Pki::open(dir.path(), &names("192.0.2.1"), Lifetimes::default()).unwrap();
        for file in gone {
            std::fs::remove_file(dir.path().join(file)).unwrap();
        }
        let before = files_in(dir.path());
        let error = Pki::open(dir.path(), &names("192.0.2.1"), Lifetimes::default()).unwrap_err().to_string();
        assert!(error.contains(blamed) && error.contains(advice), "{gone:?}: {error}");
        assert_eq!(files_in(dir.path()), before, "{gone:?}: nothing was made");
    }
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for dir in [&dir, &other] {
        Pki::open(dir.path(), &names("192.0.2.1"), Lifetimes::default()).unwrap();
    }
    std::fs::copy(other.path().join("ca.key"), dir.path().join("ca.key")).unwrap();
    let error = Pki::open(dir.path(), &names("192.0.2.1"), Lifetimes::default()).unwrap_err().to_string();
    assert!(error.contains("not the key of ca.crt"), "{error}");
}

#[test]
fn without_the_ca_key_certificates_are_not_renewed() {
    let dir = tempfile::tempdir().unwrap();
    let lifetimes = |leaf: i64, renew_before: i64| Lifetimes {
        leaf: SignedDuration::from_hours(leaf),
        renew_before: SignedDuration::from_hours(renew_before),
        ..Lifetimes::default()
    };
    let first = Pki::open(dir.path(), &names("192.0.2.1"), lifetimes(10, 1)).unwrap();
    assert!(first.renews);
    std::fs::rename(dir.path().join("ca.key"), dir.path().join("elsewhere")).unwrap();
    for renew_before in [1, 11] {
        let used = Pki::open(dir.path(), &names("192.0.2.1"), lifetimes(10, renew_before)).unwrap();
        assert!(!used.renews);
        assert_eq!((&used.server.cert_pem, &used.ca_pem), (&first.server.cert_pem, &first.ca_pem));
    }
    let error = Pki::open(dir.path(), &names("192.0.2.9"), lifetimes(10, 1)).unwrap_err().to_string();
    assert!(error.contains("apiserver.crt") && error.contains("ca.key is not there"), "{error}");
    std::fs::rename(dir.path().join("elsewhere"), dir.path().join("ca.key")).unwrap();
    let moved = Pki::open(dir.path(), &names("192.0.2.9"), lifetimes(10, 1)).unwrap();
    assert!(moved.renews && moved.ca_pem == first.ca_pem);
}

#[test]
fn a_running_process_keeps_its_ca_and_signing_key() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let used = Pki::open(dir.path(), &names("192.0.2.1"), Lifetimes::default()).unwrap();
    Pki::open(other.path(), &names("192.0.2.1"), Lifetimes::default()).unwrap();
    used.renewed(dir.path(), &names("192.0.2.1"), Lifetimes::default()).unwrap();
    for (file, source, words) in [
        ("ca.crt", None, "it is gone"),
        ("ca.crt", Some(&other), "another one than at the start"),
        ("sa.key", None, "it is gone"),
        ("sa.key", Some(&other), "another one than at the start"),
    ] {
        let path = dir.path().join(file);
        let kept = std::fs::read(&path).unwrap();
        match source {
            Some(source) => drop(std::fs::copy(source.path().join(file), &path).unwrap()),
            None => std::fs::remove_file(&path).unwrap(),
        }
        let before = files_in(dir.path());
        let error = used.renewed(dir.path(), &names("192.0.2.1"), Lifetimes::default()).unwrap_err().to_string();
        assert!(error.contains(file) && error.contains(words), "{error}");
        assert_eq!(files_in(dir.path()), before);
        std::fs::write(&path, kept).unwrap();
    }
}

#[test]
fn certificates_of_another_ca_of_the_same_name_are_reissued() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = Pki::open(other.path(), &names("192.0.2.1"), Lifetimes::default()).unwrap();
    let ours = Pki::open(dir.path(), &names("192.0.2.1"), Lifetimes::default()).unwrap();
    for file in ["ca.crt", "ca.key"] {
        std::fs::copy(other.path().join(file), dir.path().join(file)).unwrap();
    }
    let moved = Pki::open(dir.path(), &names("192.0.2.1"), Lifetimes::default()).unwrap();
    assert_eq!(moved.ca_pem, first.ca_pem);
    assert_ne!(moved.server.cert_pem, ours.server.cert_pem);
}

#[test]
fn modes_that_let_others_read_keys_are_corrected() {
    let dir = tempfile::tempdir().unwrap();
    let pki = dir.path().join("pki");
    Pki::open(&pki, &names("192.0.2.1"), Lifetimes::default()).unwrap();
    let set = |path: &Path, mode: u32| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    set(&pki, 0o755);
    let keys = ["ca.key", "sa.key", "apiserver.key", "admin.key", "node.key", "kubelet.key"].map(|file| pki.join(file));
    keys.iter().for_each(|key| set(key, 0o644));
    Pki::open(&pki, &names("192.0.2.1"), Lifetimes::default()).unwrap();
    assert_eq!(mode(&pki), 0o700);
    for key in &keys {
        assert_eq!(mode(key), 0o600, "{}", key.display());
    }
    let kubeconfig = pki.join("node.kubeconfig");
    write_private(&kubeconfig, "x").unwrap();
    set(&kubeconfig, 0o666);
    write_private(&kubeconfig, "x").unwrap();
    assert_eq!(mode(&kubeconfig), 0o640);
}

/// How often a bundle's certificates come.
fn count(bundle: &str) -> usize {
    bundle.matches("BEGIN CERTIFICATE").count()
}

#[test]
fn the_authoritys_certificate_is_renewed_before_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let open = |authority: i64, authority_renew_before: i64| {
        let lifetimes = Lifetimes {
            authority: SignedDuration::from_hours(authority),
            authority_renew_before: SignedDuration::from_hours(authority_renew_before),
            renew_before: SignedDuration::ZERO,
            ..Lifetimes::default()
        };
        Pki::open(dir.path(), &names("192.0.2.1"), lifetimes).unwrap()
    };
    let key = || std::fs::read_to_string(dir.path().join("ca.key")).unwrap();
    let first = open(10, 1);
    let first_key = key();
    assert_eq!(open(10, 9).ca_pem, first.ca_pem, "it is far from its end");
    let second = open(20, 11);
    assert_eq!(count(&second.ca_pem), 2);
    assert!(second.ca_pem.ends_with(&first.ca_pem));
    assert_eq!((key(), &second.server.cert_pem), (first_key, &first.server.cert_pem));
    assert_eq!(std::fs::read_to_string(dir.path().join("ca.crt")).unwrap(), second.ca_pem);
    assert_eq!(open(20, 11).ca_pem, second.ca_pem, "once");
    // The two differ in their serial numbers.
    let serials: std::collections::BTreeSet<Vec<u8>> =
        x509_parser::pem::Pem::iter_from_buffer(second.ca_pem.as_bytes())
            .map(|pem| pem.unwrap().parse_x509().unwrap().raw_serial().to_vec())
            .collect();
    assert_eq!(serials.len(), 2);
}

#[test]
fn an_authority_that_has_ended_is_renewed_too_and_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let ended = Lifetimes { authority: SignedDuration::from_hours(-1), ..Lifetimes::default() };
    let first = Pki::open(dir.path(), &names("192.0.2.1"), ended).unwrap();
    let second = Pki::open(dir.path(), &names("192.0.2.1"), Lifetimes::default()).unwrap();
    assert_eq!(count(&second.ca_pem), 1);
    assert_ne!(first.ca_pem, second.ca_pem);
    assert_ne!(first.server.cert_pem, second.server.cert_pem, "none outlives the authority's");
}

#[test]
fn a_foreign_ca_is_not_renewed_and_bounds_its_leaves() {
    let dir = tempfile::tempdir().unwrap();
    let pki = dir.path();
    let key = KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "somebody's authority");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
    params.not_after = rcgen::date_time_ymd(2200, 1, 1);
    let pem = params.self_signed(&key).unwrap().pem();
    std::fs::write(pki.join("ca.crt"), &pem).unwrap();
    std::fs::write(pki.join("ca.key"), key.serialize_pem()).unwrap();
    // Longer than the authority: all of it is about to end.
    let long = SignedDuration::from_hours(24 * 366 * 300);
    let lifetimes = Lifetimes { authority: long, authority_renew_before: long, leaf: long, renew_before: long };
    let first = Pki::open(pki, &names("192.0.2.1"), lifetimes).unwrap();
    assert_eq!(first.ca_pem, pem);
    let again = Pki::open(pki, &names("192.0.2.1"), lifetimes).unwrap();
    assert_eq!(again.ca_pem, pem);
    assert_eq!(again.server.cert_pem, first.server.cert_pem, "a new one would not last longer");
}

proptest::proptest! {
    /// As the fuzzer `subjects`, by attributes of names.
    #[test]
    fn whoever_asks_logs_in(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..64)) {
        crate::fuzzing::subject(&bytes);
    }
}

#[test]
fn a_subject_with_two_common_names_has_no_certificate() {
    // Kind 0 is the common name in UTF-8; the length; the text.
    assert_eq!(crate::fuzzing::subject(b"\x00\x01a\x01\x01g").unwrap().1, "a");
    assert!(crate::fuzzing::subject(b"\x00\x01a\x00\x01b").is_none());
}

/// Of an authority that is not ours, which takes what it is asked for: the login alone refuses it.
#[test]
fn a_certificate_with_two_common_names_lets_nobody_in() {
    let name = unusual::name(&[(3, 12, b"system:node:n1"), (11, 12, b"alice"), (10, 12, b"system:nodes")]);
    let (_, issued) = unusual::Authority::generate().issue(&name).unwrap();
    assert_eq!(windlass_kit::serve::identity(issued.der()).unwrap().name, "system:node:n1");
    // The unit becomes another common name, by the last number of its identifier.
    let mut der = issued.der().to_vec();
    let at = der.windows(5).position(|bytes| bytes == [6, 3, 0x55, 4, 11]).unwrap();
    der[at + 4] = 3;
    assert_eq!(windlass_kit::serve::identity(&der), None);
}

/// A cluster that is moved here brings the authority and the key of service accounts that kubeadm made.
#[test]
fn the_keys_of_kubeadm_are_taken() {
    for algorithm in ["RSA-2048", "ECDSA-P256"] {
        let dir = tempfile::tempdir().unwrap();
        for file in ["ca.crt", "ca.key", "sa.key"] {
            std::fs::copy(key_path(&format!("kubeadm-{algorithm}-{file}")), dir.path().join(file)).unwrap();
        }
        let before = files_in(dir.path());
        let pki = Pki::open(dir.path(), &names("192.0.2.1"), Lifetimes::default()).unwrap();
        let after = files_in(dir.path());
        assert!(before.iter().all(|(path, text)| after[path] == *text), "{algorithm}: what was brought is kept");
        let (leaf, authority) =
            (authority::first(&pki.server.cert_pem).unwrap(), authority::first(&pki.ca_pem).unwrap());
        let (leaf, authority) = (leaf.parse_x509().unwrap(), authority.parse_x509().unwrap());
        leaf.verify_signature(Some(authority.public_key())).unwrap();
        crate::service_account_tokens::TokenIssuer::from_pem(&pki.service_accounts.0).unwrap();
        // Requests of nodes are signed with it, too.
        let key = KeyPair::generate().unwrap();
        let asked = rcgen::CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
        let asked = CertificateRequest::from_pem(asked.as_bytes());
        if let Ok(asked) = asked {
            let signed = ClusterSigner::new(dir.path().to_owned()).sign(&asked, &[], None).unwrap();
            let signed = authority::first(&signed).unwrap();
            signed.parse_x509().unwrap().verify_signature(Some(authority.public_key())).unwrap();
        }
    }
}

/// People ask with openssl, and programs with Go's own package; what is not read says why.
#[test]
fn requests_of_other_programs_are_read() {
    let refused = |name: &str| match name {
        // Of P-521, and of SHA-512 with the other curves, ring knows nothing.
        "go-p521.csr" | "openssl-p521.csr" | "openssl-p256-sha512.csr" | "openssl-p384-sha512.csr" => {
            Some("unable to verify certificate request signature")
        }
        // As upstream's reader.
        "openssl-new.csr" => Some("PEM block type must be CERTIFICATE REQUEST"),
        _ => None,
    };
    let all = requests();
    for (name, text) in &all {
        let read = match (CertificateRequest::from_pem(text.as_bytes()), refused(name)) {
            (Ok(read), None) => read,
            (Err(why), Some(part)) if why.contains(part) => continue,
            (found, _) => panic!("{name}: {found:?}"),
        };
        assert_eq!(read.subject.common_name(), "system:node:n1", "{name}");
        assert_eq!((read.dns_names, read.ip_addresses, read.email_addresses, read.uris), (2, 2, 0, 0), "{name}");
        // A certificate for it has its names and its key.
        let dir = tempfile::tempdir().unwrap();
        Pki::open(dir.path(), &names("192.0.2.1"), Lifetimes::default()).unwrap();
        let signed = ClusterSigner::new(dir.path().to_owned()).sign(&read, &[], None).unwrap();
        let signed = authority::first(&signed).unwrap();
        let signed = signed.parse_x509().unwrap();
        assert_eq!(signed.public_key().raw, read.public_key, "{name}");
        let names = signed.subject_alternative_name().unwrap().unwrap();
        assert_eq!(names.value.general_names.len(), 4, "{name}");
    }
    assert!(all.len() > 20, "{}", all.len());
}

/// Whatever a disk does at the first start, the next one finds a CA and a key of tokens or makes them; and once they are said to
/// be there they are the same for ever: everything that was issued hangs on them.
#[test]
fn each_call_of_the_first_start_may_fail() {
    let first = std::cell::RefCell::new(None);
    let open = |dir: &Path| -> Result<[String; 2], String> {
        let dir = dir.join("pki");
        files::make_dir(&dir).map_err(|e| e.to_string())?;
        let key = ServiceAccountKey::open(&dir).map_err(|e| e.to_string())?;
        let authority = Authority::open(&dir, CLUSTER, Lifetimes::default()).map_err(|e| e.to_string())?;
        Ok([key.0, authority.pem])
    };
    let pairs = windlass_model_disk::Case {
        what: "the keys of a cluster",
        prepare: &|_| drop(first.take()),
        act: &|dir| {
            let opened = open(dir)?;
            // A second time it is what was made at the first.
            first.borrow_mut().get_or_insert(opened);
            Ok(())
        },
        judge: &|dir, done, what| {
            let found = open(dir).unwrap_or_else(|e| panic!("{what}: {e}"));
            match &*first.borrow() {
                Some(made) if done => assert!(found == *made, "{what}: they are others"),
                // What was never said to be there may be made again.
                _ => {}
            }
            first.replace(Some(found));
        },
        lasts: windlass_model_disk::Lasts::Power,
        says: &["pki"],
    }
    .run();
    println!("keys of a cluster: {pairs} pairs");
    assert!(pairs > 60, "{pairs}");
}

/// A renewal that fails leaves the CA as it was, with the key that all certificates verify with.
#[test]
fn each_call_of_a_renewal_of_the_ca_may_fail() {
    let due = Lifetimes { authority_renew_before: days(AUTHORITY_DAYS + 1), ..Lifetimes::default() };
    let open = |dir: &Path, lifetimes| Authority::open(&dir.join("pki"), CLUSTER, lifetimes).map_err(|e| e.to_string());
    let before = std::cell::RefCell::new(String::new());
    let pairs = windlass_model_disk::Case {
        what: "a CA that is renewed",
        prepare: &|dir| {
            files::make_dir(&dir.join("pki")).unwrap();
            before.replace(open(dir, Lifetimes::default()).unwrap().pem);
        },
        act: &|dir| open(dir, due).map(drop),
        judge: &|dir, _, what| {
            let found = open(dir, Lifetimes::default()).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(found.pem.contains(before.borrow().trim()), "{what}: clients have the old one");
            assert!(found.issuer.is_some(), "{what}");
        },
        lasts: windlass_model_disk::Lasts::Power,
        says: &["pki"],
    }
    .run();
    println!("a CA that is renewed: {pairs} pairs");
    assert!(pairs > 30, "{pairs}");
}

/// Whoever has a certificate of the other CA can say to extension API servers who somebody is: it is not the cluster's, and is
/// made again when it is lost.
#[test]
fn the_front_proxy_has_a_ca_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Pki::open(dir.path(), &names("192.0.2.1"), Lifetimes::default());
    let made = open().unwrap();
    assert_ne!(made.front_proxy_ca_pem, made.ca_pem);
    let issuer = |pem: &str| {
        let document = authority::first(pem).unwrap();
        let parsed = document.parse_x509().unwrap();
        (parsed.issuer().to_string(), parsed.subject().to_string())
    };
    let wanted = ("CN=windlass-front-proxy".to_owned(), "CN=front-proxy-client".to_owned());
    assert_eq!(issuer(&made.front_proxy_client.cert_pem), wanted);
    let same = |one: &Pki, other: &Pki| {
        (one.front_proxy_ca_pem == other.front_proxy_ca_pem)
            && one.front_proxy_client.cert_pem == other.front_proxy_client.cert_pem
    };
    assert!(same(&open().unwrap(), &made));
    // Its key may be elsewhere, as that of the cluster's CA.
    std::fs::remove_file(dir.path().join("front-proxy-ca.key")).unwrap();
    assert!(same(&open().unwrap(), &made));
    std::fs::remove_file(dir.path().join("front-proxy-ca.crt")).unwrap();
    let again = open().unwrap();
    assert_ne!(again.front_proxy_ca_pem, made.front_proxy_ca_pem);
    assert_ne!(again.front_proxy_client.cert_pem, made.front_proxy_client.cert_pem);
    assert_eq!(again.ca_pem, made.ca_pem);
}
