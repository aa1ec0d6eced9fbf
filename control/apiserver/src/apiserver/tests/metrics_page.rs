//! The page of metrics.

use windlass_kit::prometheus::Kind;

use super::*;

#[tokio::test]
async fn metrics_are_for_those_who_may_read_the_path() {
    let api = api();
    api.metrics().register(|page| {
        page.family("queues", "Queues.", Kind::Gauge);
        page.sample("queues", &[], 3.0);
    });
    let ask = |user: User, method: &'static str| {
        let router = api.router();
        async move {
            let request =
                Request::builder().method(method).uri("/metrics").extension(user).body(Body::empty()).unwrap();
            let response = router.oneshot(request).await.unwrap();
            let code = response.status().as_u16();
            (code, String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap())
        }
    };
    let (code, page) = ask(User::internal("test"), "GET").await;
    assert_eq!(code, 200);
    assert!(page.contains("# HELP queues Queues.\n# TYPE queues gauge\nqueues 3\n"), "{page}");
    assert_eq!(ask(User::internal("test"), "POST").await.0, 405);
    let (code, body) = ask(User::node("n1"), "GET").await;
    assert_eq!(code, 403);
    assert!(body.contains("cannot get path"), "{body}");
}

/// The series of a family with all of these labels.
fn series<'p>(page: &'p str, name: &str, labels: &[(&str, &str)]) -> Vec<&'p str> {
    let has = |line: &str| labels.iter().all(|(label, value)| line.contains(&format!("{label}=\"{value}\"")));
    page.lines().filter(|line| line.starts_with(&format!("{name}{{")) && has(line)).collect()
}

#[tokio::test]
async fn requests_are_counted_as_upstream_counts_them() {
    let api = with_namespace().await;
    let pod_path = "/api/v1/namespaces/n/pods";
    call(&api, "POST", pod_path, pod("p")).await;
    call(&api, "POST", &format!("{pod_path}?dryRun=All"), pod("q")).await;
    call(&api, "GET", pod_path, Value::Null).await;
    call(&api, "GET", "/api/v1/pods", Value::Null).await;
    call(&api, "GET", &format!("{pod_path}/p"), Value::Null).await;
    call(&api, "GET", &format!("{pod_path}/none"), Value::Null).await;
    call(&api, "DELETE", &format!("{pod_path}/p"), Value::Null).await;
    // What is not served makes no series.
    call(&api, "GET", "/apis/unknown.example.com/v1/things", Value::Null).await;
    call(&api, "GET", "/api/v1/namespaces/n/pods/p/unknown", Value::Null).await;
    let watch = {
        let request = Request::get("/api/v1/pods?watch=true").extension(User::internal("test"));
        api.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    };
    let page = || api.metrics().page(windlass_kit::prometheus::Format::Plain);
    let text = page();
    for (verb, scope, code, dry_run) in [
        ("POST", "resource", "201", ""),
        ("POST", "resource", "201", "All"),
        ("LIST", "namespace", "200", ""),
        ("LIST", "cluster", "200", ""),
        ("GET", "resource", "200", ""),
        ("GET", "resource", "404", ""),
        ("DELETE", "resource", "200", ""),
    ] {
        let labels = [
            ("verb", verb),
            ("dry_run", dry_run),
            ("group", ""),
            ("version", "v1"),
            ("resource", "pods"),
            ("subresource", ""),
            ("scope", scope),
            ("component", "apiserver"),
            ("code", code),
            ("system_client", ""),
        ];
        let found = series(&text, "apiserver_request_total", &labels);
        assert!(found.len() == 1 && found[0].ends_with(" 1"), "{labels:?}: {found:?}\n{text}");
    }
    assert!(!text.contains("unknown"), "{text}");
    let of_dry_run =
        series(&text, "apiserver_request_sli_duration_seconds_count", &[("verb", "POST"), ("resource", "pods")]);
    assert!(of_dry_run[0].ends_with(" 1"), "{of_dry_run:?}");
    // A watch is counted at its end.
    let watches = [("verb", "WATCH"), ("resource", "pods"), ("scope", "cluster")];
    assert!(series(&text, "apiserver_longrunning_requests", &watches)[0].ends_with(" 1"), "{text}");
    assert_eq!(series(&text, "apiserver_request_total", &watches), [""; 0]);
    drop(watch);
    let text = page();
    assert!(series(&text, "apiserver_longrunning_requests", &watches)[0].ends_with(" 0"), "{text}");
    assert!(series(&text, "apiserver_request_total", &watches)[0].ends_with(" 1"), "{text}");
}
