//! The HTTP doors: one file per resource of the wire contract (http-api), and no rule of the domain.
//!
//! A request passes [`door`] (negotiation, key, scope, RUL-64b), then its handler, which reads typed input out of
//! [`path`], [`query`] and [`body`], asks one verb of the store or one door of the engine, and renders the answer.
//! [`error`] alone turns a refusal into HTTP. [`routes`] is the table of all routes, as data; [`sse`] follows a
//! conversation for a client. Mount everything with [`configure`]; spawn [`stamps::write_stamps`] once per process.

pub mod admin;
pub mod agents;
pub mod api_keys;
pub mod auth;
pub mod billing;
pub mod body;
pub mod catalog;
pub mod conversations;
pub mod door;
pub mod environments;
pub mod error;
pub mod events;
pub mod health;
pub mod me;
pub mod operations;
pub mod path;
pub mod query;
pub mod routes;
pub mod runners;
pub mod runners_ws;
pub mod sandbox_queue;
pub mod sandboxes;
pub mod schedules;
pub mod secrets;
pub mod sse;
pub mod stamps;
pub mod state;
pub mod turns;
pub mod vaults;
pub mod wire;

use actix_web::middleware::from_fn;
use actix_web::web::{self, Data, ServiceConfig};
use fountain_actors::domain::ErrorCode;

pub use self::error::ApiError;
pub use self::routes::routes;
pub use self::state::{ApiSettings, AppState, CatalogFacts, RequestMeasure};

/// Mounts every route of the table behind the door. What is not in the table is answered 404 here, so this comes last
/// among the services of an application.
pub fn configure(config: &mut ServiceConfig, state: Data<AppState>) {
    let mut scope = web::scope("");
    let rows = routes();
    let mut mounted: Vec<&str> = Vec::new();
    for row in &rows {
        if mounted.contains(&row.path) {
            continue;
        }
        mounted.push(row.path);
        let mut resource = web::resource(row.path).default_service(web::to(missing));
        for same in rows.iter().filter(|other| other.path == row.path) {
            resource = resource.route((same.handler)());
        }
        scope = scope.service(resource);
    }
    config
        .app_data(state)
        .service(scope.default_service(web::to(missing)).wrap(from_fn(door::door)));
}

/// Never reached while the door knows the table; an answer all the same.
async fn missing() -> Result<actix_web::HttpResponse, ApiError> {
    Err(ErrorCode::NotFound.into())
}
