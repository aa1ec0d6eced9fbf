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
    assert_eq!((code, page.as_str()), (200, "# HELP queues Queues.\n# TYPE queues gauge\nqueues 3\n"));
    assert_eq!(ask(User::internal("test"), "POST").await.0, 405);
    let (code, body) = ask(User::node("n1"), "GET").await;
    assert_eq!(code, 403);
    assert!(body.contains("cannot get path"), "{body}");
}
