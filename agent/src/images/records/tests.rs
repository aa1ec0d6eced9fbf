use super::*;

const ID: &str = "sha256:0a";

fn image(name: &str) -> Reference {
    Reference::parse(name).unwrap()
}

fn shown(password: &str, source: Source) -> Credentials {
    let (server, username) = ("r.example".to_owned(), "u".to_owned());
    Credentials { server, username, password: password.to_owned(), identity_token: None, source }
}

/// What a pod of this namespace shows.
fn of(namespace: &str, password: &str) -> Vec<Credentials> {
    let uid = format!("uid-{namespace}");
    vec![shown(password, Source::Secret { uid, namespace: namespace.to_owned(), name: "pull".to_owned() })]
}

fn stored(id: &str, tag: &str) -> Stored {
    Stored { id: id.to_owned(), tags: vec![tag.to_owned()], digests: Vec::new(), size: 1 }
}

fn found(named: bool) -> Image {
    Image { id: ID.to_owned(), shown: String::new(), user: String::new(), size: 1, named }
}

struct Node {
    dir: tempfile::TempDir,
    records: Records,
}

impl Node {
    fn new(policy: Verification) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path().to_owned(), policy);
        Self { dir, records }
    }

    fn restarted(self) -> Self {
        let policy = (*self.records.policy).clone();
        Self { records: Records::open(self.dir.path().to_owned(), policy), dir: self.dir }
    }

    async fn pulled(&self, name: &str, with: Option<&Credentials>) {
        self.records.begin(&image(name)).await.unwrap();
        self.records.pulled(&image(name), ID, with).await;
    }

    async fn pulls(&self, name: &str, shown: &[Credentials]) -> bool {
        self.records.must_pull(&image(name), &found(true), shown).await
    }

    fn files(&self, folder: &str) -> usize {
        fs::read_dir(self.dir.path().join(folder)).map_or(0, Iterator::count)
    }
}

#[tokio::test]
async fn anothers_private_image_is_asked_for_again() {
    let node = Node::new(Verification::default());
    let name = "r.example/private:1";
    assert!(!node.pulls(name, &[]).await, "loaded by hand: anybody's");
    node.pulled(name, Some(&of("a", "secret")[0])).await;
    assert_eq!((node.files("pulled"), node.files("pulling")), (1, 0));
    let node = node.restarted();
    assert!(!node.records.is_for_all(&image(name), &found(true)).await);
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
    // Somebody has pulled it as nobody: it is no secret any more.
    node.pulled(name, None).await;
    assert!(!node.pulls(name, &[]).await && node.records.is_for_all(&image(name), &found(true)).await);
    let text =
        fs::read_to_string(fs::read_dir(node.dir.path().join("pulled")).unwrap().next().unwrap().unwrap().path());
    assert!(!text.unwrap().contains("rotated"), "no secret is on disk");
}

#[tokio::test]
async fn a_pull_that_nobody_saw_the_end_of() {
    let node = Node::new(Verification::default());
    node.records.begin(&image("r.example/private:1")).await.unwrap();
    let node = node.restarted();
    assert!(node.pulls("r.example/private:1", &[]).await);
    node.records.settle(&[stored(ID, "r.example/private:1")], Timestamp::now()).await;
    assert_eq!((node.files("pulled"), node.files("pulling")), (1, 0));
    let node = node.restarted();
    assert!(node.pulls("r.example/private:1", &of("a", "x")).await, "nobody knows what with");
    node.pulled("r.example/private:1", Some(&of("a", "x")[0])).await;
    assert!(!node.pulls("r.example/private:1", &of("a", "x")).await);
}

#[tokio::test]
async fn a_pull_that_failed_leaves_nothing_and_one_of_two_goes_on() {
    let node = Node::new(Verification::default());
    let name = image("r.example/x:1");
    for _ in 0..2 {
        node.records.begin(&name).await.unwrap();
    }
    node.records.failed(&name).await;
    assert_eq!(node.files("pulling"), 1);
    node.records.failed(&name).await;
    assert_eq!((node.files("pulling"), node.files("pulled")), (0, 0));
    assert!(!node.pulls("r.example/x:1", &[]).await);
}

#[tokio::test]
async fn images_that_are_gone_are_forgotten() {
    let node = Node::new(Verification::default());
    let before = Timestamp::now();
    node.pulled("r.example/x:1", None).await;
    node.records.settle(&[], before).await;
    assert_eq!(node.files("pulled"), 1, "it came after the list was made");
    node.records.settle(&[stored(ID, "r.example/x:1")], Timestamp::now()).await;
    assert_eq!(node.files("pulled"), 1);
    node.records.settle(&[], Timestamp::now()).await;
    assert_eq!(node.files("pulled"), 0);
}

#[tokio::test]
async fn a_record_that_cannot_be_read_opens_nothing() {
    let node = Node::new(Verification::default());
    node.pulled("r.example/x:1", None).await;
    fs::write(node.dir.path().join("pulled").join(file_of(ID)), "{half").unwrap();
    let node = node.restarted();
    assert!(node.pulls("r.example/x:1", &[]).await);
    node.pulled("r.example/x:1", None).await;
    assert!(!node.restarted().pulls("r.example/x:1", &[]).await);
}

#[tokio::test]
async fn each_policy() {
    let listed = Verification::read(
        "NeverVerifyAllowlistedImages",
        &["r.example/free/*".to_owned(), "docker.io/library/nginx".to_owned()],
    );
    let private = of("a", "x");
    for (policy, pulled, loaded) in [
        (Verification::Never, false, false),
        (Verification::NotPreloaded, true, false),
        (Verification::Always, true, true),
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
fn settings_that_make_no_sense() {
    let listed = |pattern: &str| Verification::read("NeverVerifyAllowlistedImages", &[pattern.to_owned()]);
    for good in ["r.example/*", "r.example/x", "docker.io/library/nginx"] {
        assert!(listed(good).is_ok(), "{good}");
    }
    for bad in ["", "*", "/*", "r.example/x:1", "r.*/x/*", "nginx", " r.example/x"] {
        assert!(listed(bad).is_err(), "{bad}");
    }
    assert!(Verification::read("Sometimes", &[]).unwrap_err().contains("NeverVerifyPreloadedImages"));
    assert!(Verification::read("AlwaysVerify", &["r.example/*".to_owned()]).is_err());
}

#[test]
fn no_more_secrets_than_a_file_can_hold() {
    let mut access = Access::default();
    for number in 0..300 {
        access.merge(Access::by(of(&format!("n{number}"), "x").first()));
    }
    assert_eq!(access.kubernetes_secrets.len(), MOST_SECRETS);
    assert_eq!(access.kubernetes_secrets.last().unwrap().namespace, "n299");
}
