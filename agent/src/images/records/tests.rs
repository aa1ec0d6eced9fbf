use std::{cell::Cell, fs};

use super::*;

const ID: &str = "sha256:0a";

fn image(name: &str) -> Reference {
    Reference::parse(name).unwrap()
}

fn shown(password: &str, source: Source) -> Credentials {
    let (server, username) = ("r.example".to_owned(), "u".to_owned());
    Credentials { server, username, password: password.to_owned(), identity_token: None, registry_token: None, source }
}

/// What a pod of this namespace shows.
fn of(namespace: &str, password: &str) -> Vec<Credentials> {
    let uid = format!("uid-{namespace}");
    vec![shown(password, Source::Secret { uid, namespace: namespace.to_owned(), name: "pull".to_owned() })]
}

fn stored(id: &str, tag: &str) -> ImageSummary {
    ImageSummary { id: id.to_owned(), tags: vec![tag.to_owned()], digests: Vec::new(), size: 1 }
}

/// An image as Docker lists it after a pull: with a digest of its repository.
fn pulled_image(id: &str, tag: &str) -> ImageSummary {
    let digests = vec![format!("{}@sha256:{}", image(tag).repository(), "0b".repeat(32))];
    ImageSummary { digests, ..stored(id, tag) }
}

fn found(named: bool) -> Image {
    Image { id: ID.to_owned(), shown: String::new(), user: String::new(), size: 1, named }
}

struct Node {
    dir: tempfile::TempDir,
    records: PullRecords,
}

impl Node {
    fn new(policy: PullVerificationPolicy) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let records = PullRecords::open(dir.path().to_owned(), policy);
        Self { dir, records }
    }

    fn restarted(self) -> Self {
        let policy = (*self.records.policy).clone();
        Self { records: PullRecords::open(self.dir.path().to_owned(), policy), dir: self.dir }
    }

    async fn pulled(&self, name: &str, with: Option<&Credentials>) {
        self.records.record_intent(&image(name), None).await.unwrap();
        self.records.record_pulled(&image(name), ID, with).await;
    }

    async fn pulls(&self, name: &str, shown: &[Credentials]) -> bool {
        self.records.must_pull(&image(name), &found(true), shown).await
    }

    fn files(&self, subdir: &str) -> usize {
        fs::read_dir(self.dir.path().join(subdir)).map_or(0, Iterator::count)
    }
}

#[tokio::test]
async fn a_private_image_of_another_namespace_is_pulled_again() {
    let node = Node::new(PullVerificationPolicy::default());
    let name = "r.example/private:1";
    assert!(!node.pulls(name, &[]).await, "loaded by hand: anybody's");
    node.pulled(name, Some(&of("a", "secret")[0])).await;
    assert_eq!((node.files("pulled"), node.files("pulling")), (1, 0));
    let node = node.restarted();
    assert!(!node.records.is_accessible_to_all(&image(name), &found(true)).await);
    assert!(!node.pulls(name, &of("a", "secret")).await, "its own");
    assert!(node.pulls(name, &[]).await, "a pod without a secret");
    assert!(node.pulls(name, &of("b", "guess")).await, "another namespace with another secret");
    assert!(node.pulls(name, &[shown("node", Source::Node)]).await, "the node's credentials must prove themselves");
    assert!(!node.pulls("r.example/private:2", &of("a", "secret")).await, "another tag of the same");
    assert!(
        !node.pulls("windlass/loaded:1", &[]).await,
        "a copy that was loaded under another name is nobody's secret"
    );
    let by_id = image(&format!("sha256:{}", "0a".repeat(32)));
    assert!(node.records.must_pull(&by_id, &found(false), &[]).await, "its id is no way around");
    // The same secret in another namespace, and a secret whose content was changed, are known from then on.
    assert!(!node.pulls(name, &of("b", "secret")).await);
    assert!(!node.pulls(name, &of("a", "rotated")).await);
    let node = node.restarted();
    assert!(!node.pulls(name, &of("c", "rotated")).await);
    // It was pulled anonymously: it is public now.
    node.pulled(name, None).await;
    assert!(!node.pulls(name, &[]).await && node.records.is_accessible_to_all(&image(name), &found(true)).await);
    let text =
        fs::read_to_string(fs::read_dir(node.dir.path().join("pulled")).unwrap().next().unwrap().unwrap().path());
    assert!(!text.unwrap().contains("rotated"), "no secret is on disk");
}

#[tokio::test]
async fn an_interrupted_pull_is_not_a_preloaded_image() {
    let node = Node::new(PullVerificationPolicy::default());
    node.records.record_intent(&image("r.example/private:1"), None).await.unwrap();
    let node = node.restarted();
    assert!(node.pulls("r.example/private:1", &[]).await);
    node.records.prune_unknown(&[pulled_image(ID, "r.example/private:1")], Timestamp::now()).await;
    assert_eq!((node.files("pulled"), node.files("pulling")), (1, 0));
    let node = node.restarted();
    assert!(node.pulls("r.example/private:1", &of("a", "x")).await, "nobody knows what with");
    node.pulled("r.example/private:1", Some(&of("a", "x")[0])).await;
    assert!(!node.pulls("r.example/private:1", &of("a", "x")).await);
}

/// A crash in the middle of a pull of what was there already, or was loaded meanwhile: it is preloaded as before.
#[tokio::test]
async fn an_interrupted_pull_does_not_lock_a_loaded_image() {
    let name = "windlass/busybox:1";
    for (before, there) in [(None, stored(ID, name)), (Some(ID), stored(ID, name)), (Some(ID), pulled_image(ID, name))]
    {
        let node = Node::new(PullVerificationPolicy::default());
        node.records.record_intent(&image(name), before).await.unwrap();
        assert_eq!(node.pulls(name, &[]).await, before.is_none(), "while the pull runs");
        let node = node.restarted();
        node.records.prune_unknown(&[there], Timestamp::now()).await;
        assert_eq!((node.files("pulled"), node.files("pulling")), (0, 0), "{before:?}");
        assert!(!node.restarted().pulls(name, &[]).await, "{before:?}");
    }
    // Another image has the name now: it was pulled.
    let node = Node::new(PullVerificationPolicy::default());
    node.records.record_intent(&image(name), Some("sha256:0c")).await.unwrap();
    node.records.prune_unknown(&[], Timestamp::now()).await;
    let node = node.restarted();
    node.records.prune_unknown(&[pulled_image(ID, name)], Timestamp::now()).await;
    assert_eq!((node.files("pulled"), node.files("pulling")), (1, 0));
    assert!(node.pulls(name, &[]).await);
}

/// An image is the node's when it has pulled it, under each name that it has.
#[tokio::test]
async fn what_the_node_did_not_pull_is_somebodys() {
    let node = Node::new(PullVerificationPolicy::default());
    node.pulled("nginx:1", None).await;
    let named = |tags: &[&str], digests: &[&str]| ImageSummary {
        id: ID.to_owned(),
        tags: tags.iter().map(|t| (*t).to_owned()).collect(),
        digests: digests.iter().map(|d| format!("{d}@sha256:{}", "0b".repeat(32))).collect(),
        size: 1,
    };
    let node = node.restarted();
    for (tags, digests, own) in [
        (vec!["nginx:1"], vec!["nginx"], true),
        // The tag has moved on.
        (vec![], vec!["nginx"], true),
        // Somebody has kept it under another name.
        (vec!["nginx:1", "nginx:rollback"], vec!["nginx"], false),
        (vec!["nginx:1", "backup/nginx:1"], vec!["nginx"], false),
        (vec!["nginx:1"], vec!["nginx", "r.example/nginx"], false),
    ] {
        let image = named(&tags, &digests);
        assert_eq!(node.records.own(&[image]).await.contains(ID), own, "{tags:?} {digests:?}");
    }
    let built = ImageSummary { id: "sha256:0d".to_owned(), ..named(&["app:release"], &[]) };
    assert!(node.records.own(&[built]).await.is_empty());
    // One whose pull was not seen to end.
    let node = Node::new(PullVerificationPolicy::default());
    node.records.record_intent(&image("nginx:1"), None).await.unwrap();
    let node = node.restarted();
    node.records.prune_unknown(&[pulled_image(ID, "nginx:1")], Timestamp::now()).await;
    assert!(node.records.own(&[pulled_image(ID, "nginx:1")]).await.is_empty());
}

#[tokio::test]
async fn a_failed_pull_removes_its_intent_unless_another_runs() {
    let node = Node::new(PullVerificationPolicy::default());
    let name = image("r.example/x:1");
    for _ in 0..2 {
        node.records.record_intent(&name, None).await.unwrap();
    }
    node.records.record_failed(&name).await;
    assert_eq!(node.files("pulling"), 1);
    node.records.record_failed(&name).await;
    assert_eq!((node.files("pulling"), node.files("pulled")), (0, 0));
    assert!(!node.pulls("r.example/x:1", &[]).await);
}

#[tokio::test]
async fn records_of_removed_images_are_pruned() {
    let node = Node::new(PullVerificationPolicy::default());
    let before = Timestamp::now();
    node.pulled("r.example/x:1", None).await;
    node.records.prune_unknown(&[], before).await;
    assert_eq!(node.files("pulled"), 1, "it came after the list was made");
    node.records.prune_unknown(&[stored(ID, "r.example/x:1")], Timestamp::now()).await;
    assert_eq!(node.files("pulled"), 1);
    node.records.prune_unknown(&[], Timestamp::now()).await;
    assert_eq!(node.files("pulled"), 0);
}

#[tokio::test]
async fn an_unreadable_record_grants_no_access() {
    let node = Node::new(PullVerificationPolicy::default());
    node.pulled("r.example/x:1", None).await;
    fs::write(node.dir.path().join("pulled").join(file_name(ID)), "{half").unwrap();
    let node = node.restarted();
    assert!(node.pulls("r.example/x:1", &[]).await);
    node.pulled("r.example/x:1", None).await;
    assert!(!node.restarted().pulls("r.example/x:1", &[]).await);
}

#[tokio::test]
async fn each_policy() {
    let listed = PullVerificationPolicy::read(
        "NeverVerifyAllowlistedImages",
        &["r.example/free/*".to_owned(), "docker.io/library/nginx".to_owned()],
    );
    let private = of("a", "x");
    for (policy, pulled, loaded) in [
        (PullVerificationPolicy::Never, false, false),
        (PullVerificationPolicy::NotPreloaded, true, false),
        (PullVerificationPolicy::Always, true, true),
        (listed.clone().unwrap(), true, true),
    ] {
        let node = Node::new(policy.clone());
        assert_eq!(node.pulls("r.example/x:1", &[]).await, loaded, "{policy:?}");
        node.pulled("r.example/x:1", Some(&private[0])).await;
        assert_eq!(node.pulls("r.example/x:1", &[]).await, pulled, "{policy:?}");
        assert!(!node.pulls("r.example/x:1", &private).await, "{policy:?}");
    }
    let node = Node::new(listed.unwrap());
    assert!(!node.pulls("r.example/free/x:1", &[]).await && !node.pulls("nginx", &[]).await);
    assert!(node.pulls("r.example/freedom:1", &[]).await && node.pulls("nginx2", &[]).await);
}

#[test]
fn invalid_policies() {
    let listed = |pattern: &str| PullVerificationPolicy::read("NeverVerifyAllowlistedImages", &[pattern.to_owned()]);
    for good in ["r.example/*", "r.example/x", "docker.io/library/nginx"] {
        assert!(listed(good).is_ok(), "{good}");
    }
    for bad in ["", "*", "/*", "r.example/x:1", "r.*/x/*", "nginx", " r.example/x"] {
        assert!(listed(bad).is_err(), "{bad}");
    }
    assert!(PullVerificationPolicy::read("Sometimes", &[]).unwrap_err().contains("NeverVerifyPreloadedImages"));
    assert!(PullVerificationPolicy::read("AlwaysVerify", &["r.example/*".to_owned()]).is_err());
}

#[test]
fn secrets_of_a_record_are_bounded() {
    let mut access = Access::default();
    for number in 0..300 {
        access.merge(Access::from_pull(of(&format!("n{number}"), "x").first()));
    }
    assert_eq!(access.kubernetes_secrets.len(), MAX_SECRETS);
    assert_eq!(access.kubernetes_secrets.last().unwrap().namespace, "n299");
}

/// Docker's image survives any failure here: an image pulled with a secret stays inaccessible without it, and an
/// unreadable record grants access to no one.
#[test]
fn each_call_of_a_pull_may_fail() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (name, secret) = ("r.example/private:1", &of("a", "secret")[0]);
    let pulled = Cell::new(false);
    let open = |dir: &Path| PullRecords::open(dir.join("image_manager"), PullVerificationPolicy::default());
    let pairs = windlass_model_disk::Case {
        what: "a pull with a secret",
        prepare: &|_| pulled.set(false),
        act: &|dir| {
            runtime.block_on(async {
                let records = open(dir);
                records.record_intent(&image(name), None).await.map_err(|e| e.to_string())?;
                pulled.set(true);
                records.record_pulled(&image(name), ID, Some(secret)).await;
                Ok(())
            })
        },
        judge: &|dir, done, what| {
            let records = open(dir);
            let must = |shown| runtime.block_on(records.must_pull(&image(name), &found(true), shown));
            assert!(must(&[]) || !pulled.get(), "{what}: its image is anybody's");
            assert!(pulled.get() || !done, "{what}");
        },
        lasts: windlass_model_disk::Lasts::Power,
        says: &[],
    }
    .run();
    println!("pull records: {pairs} pairs");
    assert!(pairs > 60, "{pairs}");
    // A directory that cannot be read may have any record.
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("image_manager")).unwrap();
    for subdir in ["pulled", "pulling"] {
        let path = dir.path().join("image_manager").join(subdir);
        fs::write(&path, "no directory").unwrap();
        assert!(runtime.block_on(open(dir.path()).must_pull(&image(name), &found(true), &[])), "{subdir}");
        fs::remove_file(&path).unwrap();
        assert!(!runtime.block_on(open(dir.path()).must_pull(&image(name), &found(true), &[])), "{subdir}");
    }
    // So may an intent.
    fs::create_dir(dir.path().join("image_manager/pulling")).unwrap();
    let intent = dir.path().join("image_manager/pulling").join(file_name(&image(name).to_string()));
    fs::write(&intent, "").unwrap();
    assert!(runtime.block_on(open(dir.path()).must_pull(&image(name), &found(true), &[])));
}
