//! What a disk may do while certificates are written.

use super::*;

/// The node's only credential for its cluster: however the disk fails during a rotation, the old or the new
/// certificate survives.
#[test]
fn each_call_of_a_save_may_fail() {
    let pairs: Vec<CertifiedKey> = (0..2).map(|n| pair(&wanted("n1"), n, 100)).collect();
    let save = |dir: &std::path::Path, number: usize| {
        let day = i8::try_from(number).unwrap() + 1;
        let store = Store::new(&dir.join("pki"), Purpose::Client);
        store.current().and_then(|_| store.save(&pairs[number], &jiff::civil::date(2026, 11, day).at(1, 2, 3, 0)))
    };
    let rotated = windlass_model_disk::Case {
        what: "a certificate that is rotated",
        prepare: &|dir| save(dir, 0).unwrap(),
        act: &|dir| save(dir, 1).map_err(|e| e.to_string()),
        judge: &|dir, done, what| {
            let store = Store::new(&dir.join("pki"), Purpose::Client);
            let found = store.current().unwrap_or_else(|e| panic!("{what}: {e}"));
            let found = pairs.iter().position(|pair| found.as_ref() == Some(pair));
            assert!(found == Some(1) || (!done && found == Some(0)), "{what}: {found:?}");
        },
        lasts: windlass_model_disk::Lasts::Power,
        says: &[],
    }
    .run();
    let first = windlass_model_disk::Case {
        what: "the first certificate of a node",
        prepare: &|_| (),
        act: &|dir| save(dir, 1).map_err(|e| e.to_string()),
        judge: &|dir, done, what| {
            let store = Store::new(&dir.join("pki"), Purpose::Client);
            let found = store.current().unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(found.as_ref() == Some(&pairs[1]) || (!done && found.is_none()), "{what}");
        },
        lasts: windlass_model_disk::Lasts::Power,
        says: &[],
    }
    .run();
    let self_signed = windlass_model_disk::Case {
        what: "a self-signed certificate",
        prepare: &|_| (),
        act: &|dir| self_signed(dir, &serving(&["n1"], &["10.0.0.1"])).map(drop).map_err(|e| e.to_string()),
        judge: &|dir, _, what| {
            let made = || self_signed(dir, &serving(&["n1"], &["10.0.0.1"])).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(made(), made(), "{what}");
        },
        lasts: windlass_model_disk::Lasts::Power,
        says: &[],
    }
    .run();
    println!("certificates of a node: {} pairs", rotated + first + self_signed);
    assert!(rotated > 40 && first > 40 && self_signed > 20, "{rotated} {first} {self_signed}");
}
