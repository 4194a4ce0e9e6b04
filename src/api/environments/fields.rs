//! The fields of an environment (http-api 4.2): types, then rules, all faults in one answer.

use std::collections::BTreeMap;

use fountain_actors::domain::environment::{EnvironmentConfig, Repository};
use serde_json::{Map, Value};

use crate::api::agents::fields::check_name;
use crate::api::body::Body;
use crate::api::error::ApiError;
use crate::api::secrets::is_secret_key;

/// What the build knows how to call (http-api 4.2; the catalog lists them).
pub const PACKAGE_MANAGERS: &[&str] = &["apt", "cargo", "gem", "go", "npm", "pip"];

/// Longest setup, in seconds (http-api 4.2).
const LONGEST_SETUP_S: i64 = 900;

/// Reads a new environment.
pub fn create(mut body: Body) -> Result<EnvironmentConfig, ApiError> {
    if !body.has("name") {
        body.fault("name", "is required");
    }
    merge(body, EnvironmentConfig::named(""))
}

/// Reads a change of an environment.
pub fn merge(mut body: Body, mut config: EnvironmentConfig) -> Result<EnvironmentConfig, ApiError> {
    if let Some(name) = body.text("name") {
        check_name(&mut body, &name);
        config.name = name;
    }
    if let Some(packages) = body.map("packages") {
        config.packages = read_packages(&mut body, packages);
    }
    if let Some(variables) = body.map("env_vars") {
        config.env_vars = read_variables(&mut body, variables);
    }
    if let Some(script) = body.text("setup_script") {
        config.setup_script = script;
    }
    if let Some(seconds) = body.integer("setup_timeout_seconds") {
        if !(1..=LONGEST_SETUP_S).contains(&seconds) {
            body.fault("setup_timeout_seconds", "must be 1 to 900");
        }
        config.setup_timeout_seconds = seconds;
    }
    if let Some(kind) = body.word("networking_type") {
        config.networking_type = kind;
    }
    if let Some(networking) = body.map("networking_config") {
        check_networking(&mut body, &networking);
        config.networking_config = networking;
    }
    if let Some(repositories) = body.list("repositories") {
        config.repositories = read_repositories(&mut body, repositories);
    }
    if let Some(metadata) = body.map("metadata") {
        config.metadata = metadata;
    }
    body.finish()?;
    Ok(config)
}

fn read_packages(body: &mut Body, packages: Map<String, Value>) -> BTreeMap<String, Vec<String>> {
    let mut read = BTreeMap::new();
    for (manager, value) in packages {
        let field = format!("packages/{manager}");
        if !PACKAGE_MANAGERS.contains(&manager.as_str()) {
            body.fault(&field, "is not a known package manager; see GET /api/catalog");
        }
        let names: Option<Vec<String>> = value
            .as_array()
            .and_then(|items| items.iter().map(|item| item.as_str().map(str::to_owned)).collect());
        match names {
            Some(names) if names.iter().all(|name| is_package(name)) => {
                read.insert(manager, names);
            }
            _ => body.fault(field, "must be a list of package names"),
        }
    }
    read
}

/// A name that no package manager can take for an option or a second argument.
fn is_package(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('-') && !name.chars().any(|c| c.is_whitespace() || c.is_control())
}

fn read_variables(body: &mut Body, variables: Map<String, Value>) -> BTreeMap<String, String> {
    let mut read = BTreeMap::new();
    for (name, value) in variables {
        match value {
            Value::String(value) if is_variable(&name) => {
                read.insert(name, value);
            }
            Value::String(_) => body.fault(
                format!("env_vars/{name}"),
                "must be named with letters, digits and _, not starting with a digit",
            ),
            _ => body.fault(format!("env_vars/{name}"), "must be a string"),
        }
    }
    read
}

fn is_variable(name: &str) -> bool {
    let mut characters = name.chars();
    let starts = characters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    starts && characters.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn check_networking(body: &mut Body, networking: &Map<String, Value>) {
    let hosts = match networking.get("allowed_hosts") {
        None | Some(Value::Null) => return,
        Some(hosts) => hosts.as_array(),
    };
    let usable = |host: &Value| host.as_str().is_some_and(|host| !host.trim().is_empty());
    if !hosts.is_some_and(|hosts| hosts.iter().all(usable)) {
        body.fault("networking_config/allowed_hosts", "must be a list of host names");
    }
}

fn read_repositories(body: &mut Body, repositories: Vec<Value>) -> Vec<Repository> {
    let mut read = Vec::new();
    for (index, value) in repositories.into_iter().enumerate() {
        let field = format!("repositories/{index}");
        match serde_json::from_value::<Repository>(value) {
            Err(_) => body.fault(
                field,
                "needs url and mount_path, and may have ref and secret_key, all of them texts",
            ),
            Ok(repository) => {
                check_repository(body, &field, &repository);
                read.push(repository);
            }
        }
    }
    read
}

fn check_repository(body: &mut Body, field: &str, repository: &Repository) {
    let url = url::Url::parse(&repository.url)
        .ok()
        .filter(|url| url.scheme() == "https" && url.has_host());
    match url {
        None => body.fault(format!("{field}/url"), "must be https"),
        // A password in a URL would be stored in clear and shown to everybody who reads the environment.
        Some(url) if url.password().is_some() || !url.username().is_empty() => {
            body.fault(
                format!("{field}/url"),
                "must not hold credentials; name a secret with secret_key",
            );
        }
        Some(_) => {}
    }
    let path = &repository.mount_path;
    if !path.starts_with('/') || path.split('/').any(|step| step == "..") {
        body.fault(format!("{field}/mount_path"), "must be absolute, without ..");
    }
    if repository
        .r#ref
        .as_deref()
        .is_some_and(|name| name.is_empty() || name.starts_with('-'))
    {
        body.fault(format!("{field}/ref"), "must name a branch, tag or commit");
    }
    if repository.secret_key.as_deref().is_some_and(|key| !is_secret_key(key)) {
        body.fault(
            format!("{field}/secret_key"),
            "must be the key of a secret, such as GITHUB_TOKEN",
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::error::faults_of;

    #[test]
    fn every_fault_of_an_environment_is_named_in_one_answer() {
        let body = Body::of(json!({
            "packages": {"apt": ["ripgrep", "--force"], "brew": []},
            "env_vars": {"A": 1, "1B": "x"},
            "setup_timeout_seconds": 901,
            "networking_type": "none",
            "networking_config": {"allowed_hosts": [""]},
            "repositories": [{"url": "http://a/b", "mount_path": "x"}, {"url": 1}],
        }));
        let fields = faults_of(create(body).unwrap_err());
        assert_eq!(
            fields,
            [
                "env_vars/1B",
                "env_vars/A",
                "name",
                "networking_config/allowed_hosts",
                "networking_type",
                "packages/apt",
                "packages/brew",
                "repositories/0/mount_path",
                "repositories/0/url",
                "repositories/1",
                "setup_timeout_seconds",
            ]
        );
    }

    #[test]
    fn p80_a_repository_url_with_a_password_is_refused() {
        let body = Body::of(json!({
            "name": "ci",
            "repositories": [{"url": "https://me:token@example.com/a/b", "mount_path": "/b"}],
        }));
        assert_eq!(faults_of(create(body).unwrap_err()), ["repositories/0/url"]);
    }
}
