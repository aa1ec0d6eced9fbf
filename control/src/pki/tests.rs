use std::os::unix::fs::PermissionsExt as _;

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
fn a_kubeconfig_is_the_groups_only_where_the_folder_says_so() {
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
fn certificates_are_made_anew_before_they_end() {
    let dir = tempfile::tempdir().unwrap();
    let open = |leaf: i64, renew_before: i64| {
        let lifetimes = Lifetimes {
            leaf: SignedDuration::from_hours(leaf),
            renew_before: SignedDuration::from_hours(renew_before),
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
