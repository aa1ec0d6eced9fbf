//! A request, from its path to its answer.

use std::sync::Arc;

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{Method, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use windlass_kit::serve::{BodyError, Caller};

use super::{
    Cri,
    grpc::{self, Code, Status},
    messages::Message,
};

/// The services, as paths begin.
const RUNTIME: &str = "/runtime.v1.RuntimeService/";
const IMAGES: &str = "/runtime.v1.ImageService/";

#[derive(Clone)]
struct Server {
    cri: Arc<Cri>,
    calls: Arc<Semaphore>,
}

/// All calls.
pub(super) fn router(cri: Arc<Cri>, calls: Arc<Semaphore>) -> Router {
    Router::new().fallback(answer).with_state(Server { cri, calls })
}

async fn answer(State(server): State<Server>, Extension(caller): Extension<Caller>, request: Request) -> Response {
    if request.method() != Method::POST || !grpc::is_grpc(request.headers()) {
        return (StatusCode::UNSUPPORTED_MEDIA_TYPE, "this socket speaks gRPC\n").into_response();
    }
    let path = request.uri().path().to_owned();
    let called = match grpc::time_limit(request.headers()) {
        Ok(Some(limit)) => {
            let call = timeout(limit, called(&server, &caller, &path, request.into_body()));
            call.await.unwrap_or_else(|_| Err(Status::late()))
        }
        Ok(None) => called(&server, &caller, &path, request.into_body()).await,
        Err(status) => Err(status),
    };
    match called {
        Ok((message, permit)) => succeeded(&message, permit),
        Err(status) => {
            tracing::debug!(path, %status, "a call of CRI failed");
            failed(&status)
        }
    }
}

/// Reads the message and makes the call. Its permit lasts until the answer is sent.
async fn called(
    server: &Server,
    caller: &Caller,
    path: &str,
    body: Body,
) -> Result<(Vec<u8>, OwnedSemaphorePermit), Status> {
    let body = read(body).await?;
    // Only now: until a whole request has come, its connection may be closed for others.
    caller.authenticated();
    let permit = Arc::clone(&server.calls)
        .try_acquire_owned()
        .map_err(|_| Status::new(Code::ResourceExhausted, "too many calls are being answered; try again later"))?;
    let answer = dispatch(&server.cri, path, &grpc::unframed(&body)?).await?;
    if answer.len() > grpc::MAX_MESSAGE_BYTES {
        return Err(Status::new(Code::ResourceExhausted, format!("the answer has {} bytes", answer.len())));
    }
    Ok((answer, permit))
}

/// The body of a request.
async fn read(body: Body) -> Result<Bytes, Status> {
    let collected = Limited::new(body, grpc::MAX_BODY_BYTES).collect().await;
    collected.map(http_body_util::Collected::to_bytes).map_err(|error| {
        if error.downcast_ref::<LengthLimitError>().is_some() {
            return grpc::too_long(grpc::MAX_BODY_BYTES);
        }
        match BodyError::of(error.as_ref()) {
            Some(BodyError::Timeout) => Status::late(),
            Some(BodyError::Busy) => Status::new(Code::ResourceExhausted, BodyError::Busy.to_string()),
            None => Status::new(Code::Unavailable, format!("the request could not be read: {error}")),
        }
    })
}

fn succeeded(message: &[u8], permit: OwnedSemaphorePermit) -> Response {
    let frame = Full::new(grpc::framed(message));
    let body = frame.with_trailers(std::future::ready(Some(Ok(grpc::done()))));
    let counted = body.map_frame(move |frame| {
        let _until_sent = &permit;
        frame
    });
    ([(header::CONTENT_TYPE, grpc::CONTENT_TYPE)], Body::new(counted)).into_response()
}

/// An error is headers alone.
fn failed(status: &Status) -> Response {
    let mut response = ([(header::CONTENT_TYPE, grpc::CONTENT_TYPE)], Body::empty()).into_response();
    response.headers_mut().extend(status.trailers());
    response
}

/// Reads a call's message.
fn decoded<M: Message>(message: &[u8]) -> Result<M, Status> {
    M::decoded(message)
        .map_err(|problem| Status::new(Code::Internal, format!("grpc: error unmarshalling request: {problem}")))
}

async fn dispatch(cri: &Cri, path: &str, message: &[u8]) -> Result<Vec<u8>, Status> {
    if let Some(method) = path.strip_prefix(RUNTIME) {
        return runtime(cri, method, message).await;
    }
    if let Some(method) = path.strip_prefix(IMAGES) {
        return images(cri, method, message).await;
    }
    let service = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    Err(Status::new(Code::Unimplemented, format!("unknown service {service}")))
}

async fn runtime(cri: &Cri, method: &str, message: &[u8]) -> Result<Vec<u8>, Status> {
    Ok(match method {
        "Version" => cri.version(&decoded(message)?)?.encoded(),
        "Status" => cri.status(&decoded(message)?).encoded(),
        "ListContainers" => cri.list_containers(decoded(message)?)?.encoded(),
        "ContainerStatus" => cri.container_status(&decoded(message)?)?.encoded(),
        "StopContainer" => cri.stop_container(&decoded(message)?).await?.encoded(),
        "ExecSync" => cri.exec_sync(&decoded(message)?).await?.encoded(),
        "ListPodSandbox" => cri.list_pod_sandbox(decoded(message)?)?.encoded(),
        "PodSandboxStatus" => cri.pod_sandbox_status(&decoded(message)?)?.encoded(),
        "ContainerStats" => cri.container_stats(&decoded(message)?).await?.encoded(),
        "ListContainerStats" => cri.list_container_stats(decoded(message)?).await?.encoded(),
        "Exec" | "Attach" | "PortForward" => {
            let why = format!(
                "{method} is not served on this socket: run commands with ExecSync (crictl exec --sync), or use kubectl"
            );
            return Err(Status::new(Code::Unimplemented, why));
        }
        _ => return Err(unserved(method)),
    })
}

async fn images(cri: &Cri, method: &str, message: &[u8]) -> Result<Vec<u8>, Status> {
    Ok(match method {
        "ListImages" => cri.list_images(decoded(message)?).await?.encoded(),
        "ImageStatus" => cri.image_status(decoded(message)?).await?.encoded(),
        "PullImage" => cri.pull_image(decoded(message)?).await?.encoded(),
        "ImageFsInfo" => cri.image_fs_info(&decoded(message)?).encoded(),
        _ => return Err(unserved(method)),
    })
}

fn unserved(method: &str) -> Status {
    let why = format!(
        "{method} is not served on this socket: it shows what runs, and pods, containers and images are managed through the Kubernetes API"
    );
    Status::new(Code::Unimplemented, why)
}
