//! The route table: every route with its gate, its media and its body limit, as data (RUL-63).
//!
//! Routing is built from it, the door reads gates out of it, and a test walks it. Static paths stand before parameter
//! paths (http-api 7, caution 1). A method or path that is not here is 404, under `/api` only after the key check.

use actix_web::http::Method;
use actix_web::{Route as Handler, web};

use super::{
    admin, agents, api_keys, billing, catalog, conversations, environments, events, health, me, operations, runners,
    runners_ws, sandbox_queue, sandboxes, schedules, turns, vaults,
};

/// Who may call a route (http-api 1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// No key.
    Public,
    /// Any valid key but a runner's.
    Any,
    /// Full scope.
    Full,
    /// Key management: the rule of [`Gate::Full`].
    Keys,
    /// Full scope and role admin.
    Admin,
    /// Any valid key, a runner's too: the runner socket, which checks scopes itself (runner-protocol 1).
    Dial,
}

/// What a route answers, and so whether `Accept` must admit JSON (http-api 1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    Json,
    /// Event streams, images, pages and the runner socket: `Accept` is not looked at.
    Free,
}

/// How large a body may be (RUL-8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Small,
    /// Prompts carry images.
    Large,
}

/// One row of the table.
pub struct Route {
    pub method: Method,
    pub path: &'static str,
    pub gate: Gate,
    pub media: Media,
    pub limit: Limit,
    pub handler: fn() -> Handler,
}

impl Route {
    fn json(method: Method, path: &'static str, gate: Gate, handler: fn() -> Handler) -> Self {
        Self {
            method,
            path,
            gate,
            media: Media::Json,
            limit: Limit::Small,
            handler,
        }
    }

    fn free(mut self) -> Self {
        self.media = Media::Free;
        self
    }

    fn large(mut self) -> Self {
        self.limit = Limit::Large;
        self
    }
}

macro_rules! row {
    ($method:ident $path:literal $gate:ident $($handler:tt)+) => {
        Route::json(Method::$method, $path, Gate::$gate, || web::method(Method::$method).to($($handler)+))
    };
}

/// All routes.
pub fn routes() -> Vec<Route> {
    vec![
        row!(GET "/" Public health::landing).free(),
        row!(GET "/health" Public health::alive).free(),
        row!(GET "/health/ready" Public health::ready).free(),
        row!(GET "/api/auth/me" Any me::show),
        row!(GET "/api/auth/api-keys" Keys api_keys::list),
        row!(POST "/api/auth/api-keys" Keys api_keys::create),
        row!(DELETE "/api/auth/api-keys/{id}" Keys api_keys::revoke),
        row!(GET "/api/agents" Any agents::list),
        row!(POST "/api/agents" Any agents::create),
        row!(GET "/api/agents/{id}" Any agents::show),
        row!(PUT "/api/agents/{id}" Any agents::update),
        row!(PATCH "/api/agents/{id}" Any agents::update),
        row!(DELETE "/api/agents/{id}" Any agents::delete),
        row!(GET "/api/environments" Any environments::list),
        row!(POST "/api/environments" Any environments::create),
        row!(GET "/api/environments/{id}" Any environments::show),
        row!(PUT "/api/environments/{id}" Any environments::update),
        row!(PATCH "/api/environments/{id}" Any environments::update),
        row!(DELETE "/api/environments/{id}" Any environments::delete),
        row!(GET "/api/environments/{id}/secrets" Any environments::secrets),
        row!(POST "/api/environments/{id}/secrets" Any environments::put_secret),
        row!(DELETE "/api/environments/{id}/secrets/{key}" Any environments::delete_secret),
        row!(GET "/api/vaults" Any vaults::list),
        row!(POST "/api/vaults" Any vaults::create),
        row!(GET "/api/vaults/{id}" Any vaults::show),
        row!(PUT "/api/vaults/{id}" Any vaults::update),
        row!(PATCH "/api/vaults/{id}" Any vaults::update),
        row!(DELETE "/api/vaults/{id}" Any vaults::delete),
        row!(GET "/api/vaults/{id}/secrets" Any vaults::secrets),
        row!(POST "/api/vaults/{id}/secrets" Any vaults::put_secret),
        row!(PATCH "/api/vaults/{id}/secrets/{key}" Any vaults::set_expiry),
        row!(DELETE "/api/vaults/{id}/secrets/{key}" Any vaults::delete_secret),
        row!(GET "/api/conversations" Any conversations::list),
        row!(POST "/api/conversations" Any conversations::create::create).large(),
        row!(GET "/api/conversations/{id}" Any conversations::show),
        row!(DELETE "/api/conversations/{id}" Any conversations::delete),
        row!(POST "/api/conversations/{id}/prompts" Any conversations::prompts::prompt).large(),
        row!(POST "/api/conversations/{id}/interrupt" Any conversations::interrupt),
        row!(POST "/api/conversations/{id}/terminate" Any conversations::terminate),
        row!(POST "/api/conversations/{id}/read" Any conversations::read),
        row!(PATCH "/api/conversations/{id}/labels" Any conversations::labels::merge),
        row!(POST "/api/conversations/{id}/requests/{request_id}" Any conversations::answer),
        row!(GET "/api/conversations/{id}/turns" Any turns::list),
        row!(GET "/api/conversations/{id}/turns/{turn_id}/images/{position}" Any turns::image).free(),
        row!(GET "/api/conversations/{id}/events" Any events::list),
        row!(GET "/api/conversations/{id}/stream" Any events::stream).free(),
        row!(GET "/api/conversations/{id}/why" Full operations::why_conversation),
        row!(GET "/api/events/stream" Any events::account_stream).free(),
        row!(GET "/api/sandboxes" Any sandboxes::list),
        row!(GET "/api/sandboxes/{id}" Any sandboxes::show),
        row!(DELETE "/api/sandboxes/{id}" Any sandboxes::reset),
        row!(GET "/api/sandboxes/{id}/operations" Full operations::list),
        row!(GET "/api/sandboxes/{id}/why" Full operations::why_machine),
        row!(GET "/api/admin/sandboxes" Admin admin::sandboxes::list),
        row!(POST "/api/admin/sandboxes/{id}/reap" Admin admin::sandboxes::reap),
        row!(POST "/api/admin/sandboxes/{id}/retry-reset" Admin admin::sandboxes::retry_reset),
        row!(POST "/api/admin/providers/{provider}/confirm-lost" Admin admin::sandboxes::confirm_lost),
        row!(GET "/api/admin/ledger" Admin admin::ledger::show),
        row!(GET "/api/admin/audit" Admin admin::ledger::audit),
        row!(GET "/api/admin/events" Admin admin::ledger::events),
        row!(GET "/api/catalog" Any catalog::show),
        row!(GET "/api/runners/ws" Dial runners_ws::connect).free(),
        row!(GET "/api/runners" Full runners::list),
        row!(POST "/api/runners/keys" Full runners::create_key),
        row!(DELETE "/api/runners/{id}" Full runners::delete),
        row!(GET "/api/sandbox-queue" Any sandbox_queue::list),
        row!(GET "/api/sandbox-queue/{id}" Any sandbox_queue::show),
        row!(DELETE "/api/sandbox-queue/{id}" Any sandbox_queue::cancel),
        row!(GET "/api/team/schedules" Any schedules::all),
        row!(GET "/api/team/{agent_id}/schedules" Any schedules::list),
        row!(POST "/api/team/{agent_id}/schedules" Any schedules::create),
        row!(GET "/api/team/{agent_id}/schedules/{id}" Any schedules::show),
        row!(PATCH "/api/team/{agent_id}/schedules/{id}" Any schedules::update),
        row!(DELETE "/api/team/{agent_id}/schedules/{id}" Any schedules::delete),
        row!(POST "/api/team/{agent_id}/schedules/{id}/run" Any schedules::run),
        row!(GET "/api/account/billing" Full billing::show),
        row!(GET "/api/admin/users" Admin admin::users::list),
        row!(GET "/api/admin/users/{id}" Admin admin::users::show),
        row!(POST "/api/admin/users/{id}/role" Admin admin::users::role),
        row!(POST "/api/admin/users/{id}/sandbox-limit" Admin admin::users::sandbox_limit),
        row!(POST "/api/admin/users/{id}/comp" Admin admin::users::comp),
        row!(POST "/api/admin/users/{id}/credits" Admin admin::users::grant),
        row!(POST "/api/admin/users/{id}/suspend" Admin admin::users::suspend),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caution_1_static_paths_stand_before_parameter_paths_of_the_same_shape() {
        let rows = routes();
        for (later, row) in rows.iter().enumerate() {
            for earlier in &rows[..later] {
                let shadowed = earlier.path != row.path
                    && earlier.method == row.method
                    && earlier.path.split('/').count() == row.path.split('/').count()
                    && earlier
                        .path
                        .split('/')
                        .zip(row.path.split('/'))
                        .all(|(pattern, segment)| pattern.starts_with('{') || pattern == segment);
                assert!(!shadowed, "{} is hidden behind {}", row.path, earlier.path);
            }
        }
    }

    #[test]
    fn only_health_and_the_page_are_public_and_every_api_route_has_a_key() {
        for row in routes() {
            assert_eq!(row.gate == Gate::Public, !row.path.starts_with("/api/"), "{}", row.path);
        }
    }

    #[test]
    fn rul_08_only_create_and_prompts_take_large_bodies() {
        let large: Vec<_> = routes()
            .iter()
            .filter(|row| row.limit == Limit::Large)
            .map(|row| row.path)
            .collect();
        assert_eq!(large, ["/api/conversations", "/api/conversations/{id}/prompts"]);
    }

    #[test]
    fn no_route_stands_twice() {
        let mut rows: Vec<_> = routes().iter().map(|row| (row.path, row.method.to_string())).collect();
        let all = rows.len();
        rows.sort();
        rows.dedup();
        assert_eq!(rows.len(), all);
    }
}
