//! The doors over HTTP (providers 1.1 to 1.10). What a path means is here; what it does is in the rooms.

mod caller;
mod checkpoints;
mod exec;
mod files;
mod name;
mod policy;
mod proxy;
pub mod refusal;
mod services;
mod sprites;
mod url;
mod watch;

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use actix_web::web::{self, ServiceConfig, delete, get, post, put};

pub use name::is_valid as is_valid_name;
use refusal::Refusal;

/// Mounts every door.
pub fn routes(config: &mut ServiceConfig) {
    config
        .route("/v1/sprites", post().to(sprites::create))
        .route("/v1/sprites", get().to(sprites::list))
        .service(web::scope("/v1/sprites/{name}").configure(of_a_sprite))
        .route("/sprites/{id}", web::to(url::open))
        .route("/sprites/{id}/{inside:.*}", web::to(url::open))
        .default_service(web::to(nowhere));
}

fn of_a_sprite(config: &mut ServiceConfig) {
    config
        .route("", get().to(sprites::get))
        .route("", delete().to(sprites::delete))
        .route("", put().to(sprites::update))
        .route("/upgrade", post().to(sprites::upgrade))
        .route("/restart", post().to(sprites::restart))
        .route("/check", get().to(sprites::check))
        .route("/exec", get().to(exec::get))
        .route("/exec", post().to(exec::post))
        .route("/exec/{session}", get().to(exec::attach))
        .route("/exec/{session}/kill", post().to(exec::kill))
        .route("/checkpoint", post().to(checkpoints::create))
        .route("/checkpoints", get().to(checkpoints::list))
        .route("/checkpoints/{checkpoint}", get().to(checkpoints::get))
        .route("/checkpoints/{checkpoint}", delete().to(checkpoints::delete))
        .route("/checkpoints/{checkpoint}/restore", post().to(checkpoints::restore))
        .route("/policy/network", get().to(policy::get))
        .route("/policy/network", post().to(policy::set))
        .route("/proxy", get().to(proxy::open))
        .route("/services", get().to(services::list))
        .route("/services/signal", post().to(services::signal))
        .route("/services/{service}", get().to(services::get))
        .route("/services/{service}", put().to(services::put))
        .route("/services/{service}", delete().to(services::delete))
        .route("/services/{service}/start", post().to(services::start))
        .route("/services/{service}/stop", post().to(services::stop))
        .route("/services/{service}/restart", post().to(services::restart))
        .route("/services/{service}/logs", get().to(services::logs))
        .route("/fs/watch", get().to(watch::open))
        .route("/fs/read", get().to(files::read))
        .route("/fs/write", put().to(files::write))
        .route("/fs/list", get().to(files::list))
        .route("/fs/delete", delete().to(files::delete))
        .route("/fs/rename", post().to(files::rename))
        .route("/fs/copy", post().to(files::copy))
        .route("/fs/chmod", post().to(files::chmod))
        .route("/fs/chown", post().to(files::chown));
}

async fn nowhere() -> Result<HttpResponse, Refusal> {
    Err(Refusal::new(StatusCode::NOT_FOUND, "not found"))
}
