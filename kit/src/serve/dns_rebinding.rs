//! Protection against DNS rebinding: a page of another host, whose name resolves to this host, sends requests with that
//! name. A server on loopback does not accept such names.

use std::net::IpAddr;

use axum::{
    Router,
    extract::Request,
    http::{StatusCode, header},
    middleware,
    response::{IntoResponse as _, Response},
};

use super::headers;

/// Refuses requests for names that others can resolve to this host.
pub(super) fn only_local_names(router: Router) -> Router {
    router.layer(middleware::map_request(check))
}

async fn check(request: Request) -> Result<Request, Response> {
    let named = request.headers().contains_key(header::HOST).then(|| headers::shown(request.headers(), "host"));
    match named.or_else(|| request.uri().authority().map(|authority| authority.as_str().into())) {
        Some(host) if !is_local_name(&host) => {
            let why = format!("{host} is no name of this machine's own: ask for localhost or by an address");
            Err((StatusCode::FORBIDDEN, why).into_response())
        }
        _ => Ok(request),
    }
}

/// Whether a host, with a port or without, is an address or `localhost`: names that DNS cannot point at this host.
fn is_local_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    };
    let plain = name.trim_start_matches('[').trim_end_matches(']');
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    plain.parse::<IpAddr>().is_ok() || name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_here_alone() {
        for (host, local) in [
            ("localhost", true),
            ("localhost:10255", true),
            ("LOCALHOST.:10255", true),
            ("node.localhost", true),
            ("127.0.0.1:10255", true),
            ("10.0.0.5", true),
            ("[::1]:10255", true),
            ("[::1]", true),
            ("evil.example:10255", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("evillocalhost", false),
            ("", false),
        ] {
            assert_eq!(is_local_name(host), local, "{host}");
        }
    }
}
