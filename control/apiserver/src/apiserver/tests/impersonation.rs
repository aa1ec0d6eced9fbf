//! Requests as another user.

use super::*;

#[tokio::test]
async fn impersonation_needs_the_right_and_acts_as_the_other() {
    let api = with_namespace().await;
    call(&api, "POST", MAPS, map("m")).await;
    let send_as = |user: User, headers: &'static [(&'static str, &'static str)], path: &'static str| {
        let router = api.router();
        async move {
            let mut request = Request::builder().uri(path).extension(user);
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let response = router.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
            let code = response.status().as_u16();
            let bytes = response.into_body().collect().await.unwrap().to_bytes();
            (code, serde_json::from_slice::<Value>(&bytes).unwrap_or_default())
        }
    };
    let (admin, node) = (User::internal("test"), User::node("n1"));
    for headers in [
        &[("Impersonate-User", "nobody")][..],
        &[("impersonate-user", "nobody"), ("impersonate-group", "dev"), ("impersonate-extra-scopes", "x")],
    ] {
        let (code, body) = send_as(admin.clone(), headers, MAPS).await;
        assert_eq!(code, 403);
        assert!(body["message"].as_str().unwrap().contains("User \"nobody\" cannot list resource"), "{body}");
        let (code, body) = send_as(node.clone(), headers, MAPS).await;
        assert_eq!(code, 403);
        let why = "users \"nobody\" is forbidden: User \"system:node:n1\" cannot impersonate resource \"users\"";
        assert!(body["message"].as_str().unwrap().starts_with(why), "{body}");
    }
    let masters = &[("Impersonate-User", "jane"), ("Impersonate-Group", "system:masters")];
    assert_eq!(send_as(admin.clone(), masters, MAPS).await.0, 200);
    assert_eq!(send_as(admin.clone(), &[("Impersonate-Group", "system:masters")], MAPS).await.0, 400);
    assert_eq!(send_as(admin, &[("Impersonate-User", "system:anonymous")], MAPS).await.0, 401);
}

/// kubectl and proxies that know users send their names as they are.
#[tokio::test]
async fn a_name_that_is_not_ascii_never_leaves_the_request_to_its_sender() {
    let api = with_namespace().await;
    let send_as = async |name: &str, value: &[u8]| {
        let request = Request::builder().uri(MAPS).extension(User::internal("test")).header(name, value);
        let request = if name == "impersonate-user" { request } else { request.header("impersonate-user", "jane") };
        let response = api.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let code = response.status().as_u16();
        (code, String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap())
    };
    let (code, said) = send_as("impersonate-user", "jürgen".as_bytes()).await;
    assert!(code == 403 && said.contains("jürgen"), "{code} {said}");
    for name in ["impersonate-user", "impersonate-group", "impersonate-uid", "impersonate-extra-scopes"] {
        let (code, said) = send_as(name, b"j\xfcrgen").await;
        assert!(code == 400 && said.contains(name), "{code} {said}");
    }
    let (code, said) = send_as("authorization", b"Bearer j\xfcrgen").await;
    assert_eq!(code, 403, "a component of this process needs no token: {said}");
    let shown = Request::builder().uri("/version").header("authorization", &b"Bearer \xff"[..]);
    let response = api.router().oneshot(shown.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 400, "whoever shows a token is not anonymous");
}
