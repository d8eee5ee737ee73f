//! The HTTP client that packages are fetched with, set up as pixi sets up its own.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pixi_config::{Config, S3Options, Surroundings, TlsRootCerts};
use rattler_networking::authentication_storage::backends::file::FileStorage;
use rattler_networking::mirror_middleware::Mirror;
use rattler_networking::retry_policies::default_retry_policy;
use rattler_networking::s3_middleware::{S3AddressingStyle, S3Config};
use rattler_networking::{
    AuthChallengeMiddleware, AuthenticationMiddleware, AuthenticationStorage, GCSMiddleware,
    LazyClient, MirrorMiddleware, OciMiddleware, OfflineMiddleware, S3Middleware,
};
use reqwest::{Client, NoProxy, Proxy};
use reqwest_middleware::{ClientWithMiddleware, Middleware};
use reqwest_retry::RetryTransientMiddleware;
use url::Url;

/// How long a server may say nothing.
const READ_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// Connections to one host that are kept for the next request.
const IDLE_CONNECTIONS: usize = 20;

/// A client by the options of `config`; nothing is read or built before its first use.
///
/// `s3_options` are the workspace's, which win over those of `config`.
#[must_use]
pub fn client(
    config: &Config,
    s3_options: &HashMap<String, S3Options>,
    surroundings: &Surroundings,
) -> LazyClient {
    let (config, surroundings) = (config.clone(), surroundings.clone());
    let s3_options = s3_options.clone();
    LazyClient::new(move || {
        let client = match http_client(&config, &surroundings) {
            Ok(client) => client,
            Err(error) => {
                // Never around a proxy or a choice of certificates.
                tracing::error!(
                    "nothing can be downloaded, the TLS or proxy options are wrong: {error}"
                );
                let nothing: Arc<dyn Middleware> = Arc::new(OfflineMiddleware);
                return ClientWithMiddleware::new(Client::new(), vec![nothing]);
            }
        };
        let middleware = middleware(&config, s3_options, &client);
        ClientWithMiddleware::new(client, middleware)
    })
}

fn http_client(config: &Config, surroundings: &Surroundings) -> reqwest::Result<Client> {
    let mut builder = Client::builder()
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .user_agent(concat!("pixi-mount/", env!("CARGO_PKG_VERSION")))
        .read_timeout(READ_TIMEOUT);
    if config.tls_no_verify == Some(true) {
        tracing::warn!("certificates are not verified (`tls-no-verify`): this is not safe");
        builder = builder.danger_accept_invalid_certs(true);
    }
    let has_own_certificates = ["SSL_CERT_FILE", "SSL_CERT_DIR"]
        .iter()
        .any(|name| surroundings.variable(name).is_some());
    // The system's store is the client's default, and it heeds those two variables.
    if !has_own_certificates && config.tls_root_certs != Some(TlsRootCerts::System) {
        let bundled = webpki_root_certs::TLS_SERVER_ROOT_CERTS
            .iter()
            .filter_map(|certificate| reqwest::Certificate::from_der(certificate).ok());
        builder = builder.tls_certs_only(bundled);
    }
    for proxy in proxies(config, surroundings)? {
        builder = builder.proxy(proxy);
    }
    builder.build()
}

/// The proxies of the configuration; none where the environment names some, which the client finds
/// by itself.
fn proxies(config: &Config, surroundings: &Surroundings) -> reqwest::Result<Vec<Proxy>> {
    const VARIABLES: [&str; 6] = [
        "http_proxy",
        "HTTP_PROXY",
        "https_proxy",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ];
    let options = &config.proxy_config;
    if (VARIABLES.iter()).any(|name| surroundings.variable(name).is_some()) {
        return Ok(Vec::new());
    }
    let exceptions = NoProxy::from_string(&options.non_proxy_hosts.join(","));
    let mut proxies = Vec::new();
    if let Some(url) = &options.http {
        proxies.push(Proxy::http(url.as_str())?.no_proxy(exceptions.clone()));
    }
    if let Some(url) = &options.https {
        proxies.push(Proxy::https(url.as_str())?.no_proxy(exceptions));
    }
    Ok(proxies)
}

/// What a request passes through on its way out, in pixi's order.
fn middleware(
    config: &Config,
    s3_options: HashMap<String, S3Options>,
    client: &Client,
) -> Vec<Arc<dyn Middleware>> {
    let mut stack: Vec<Arc<dyn Middleware>> = Vec::new();
    // First, so that nothing else gets to the network.
    if config.offline == Some(true) {
        stack.push(Arc::new(OfflineMiddleware));
    }
    // Before the mirrors, so that another try can go to another mirror.
    stack.push(Arc::new(RetryTransientMiddleware::new_with_policy(
        default_retry_policy(),
    )));
    if !config.mirrors.is_empty() {
        stack.push(Arc::new(mirrors(config)));
    }
    stack.push(Arc::new(OciMiddleware::new(ClientWithMiddleware::from(
        client.clone(),
    ))));
    stack.push(Arc::new(GCSMiddleware::default()));

    let credentials = credentials(config.authentication_override_file.as_deref());
    let mut buckets = config.s3_options.clone();
    buckets.extend(s3_options);
    stack.push(Arc::new(S3Middleware::new(
        buckets.into_iter().map(bucket).collect(),
        credentials.clone(),
    )));
    stack.push(Arc::new(AuthenticationMiddleware::from_auth_storage(
        credentials,
    )));
    stack.push(Arc::new(AuthChallengeMiddleware::default()));
    stack
}

fn mirrors(config: &Config) -> MirrorMiddleware {
    // Without the slash the last part of the path would be replaced and not extended.
    fn folder(url: &Url) -> Url {
        let mut url = url.clone();
        if !url.path().ends_with('/') {
            url.set_path(&format!("{}/", url.path()));
        }
        url
    }
    let mirror = |url: &Url| Mirror {
        url: folder(url),
        no_zstd: false,
        no_bz2: false,
        max_failures: None,
    };
    MirrorMiddleware::from_map(
        (config.mirrors.iter())
            .map(|(url, mirrors)| (folder(url), mirrors.iter().map(mirror).collect()))
            .collect(),
    )
}

fn bucket((name, options): (String, S3Options)) -> (String, S3Config) {
    let config = S3Config::Custom {
        endpoint_url: options.endpoint_url,
        region: options.region,
        addressing_style: if options.force_path_style {
            S3AddressingStyle::Path
        } else {
            S3AddressingStyle::VirtualHost
        },
        credentials_provider: None,
    };
    (name, config)
}

/// Where credentials come from: `RATTLER_AUTH_FILE`, the configured file, the key ring, rattler's
/// own file, netrc.
fn credentials(override_file: Option<&Path>) -> AuthenticationStorage {
    let mut storage = AuthenticationStorage::from_env_and_defaults().unwrap_or_else(|error| {
        tracing::warn!("going on without stored credentials: {error}");
        AuthenticationStorage::empty()
    });
    if let Some(path) = override_file {
        match FileStorage::from_path(path.to_path_buf()) {
            Ok(file) => {
                let first = usize::from(std::env::var_os("RATTLER_AUTH_FILE").is_some());
                let position = first.min(storage.backends.len());
                storage.backends.insert(position, Arc::new(file));
            }
            Err(error) => tracing::warn!("ignoring the credentials in {}: {error}", path.display()),
        }
    }
    storage
}

#[cfg(test)]
mod tests {
    use super::*;

    fn surroundings(variables: &[(&str, &str)]) -> Surroundings {
        Surroundings {
            variables: (variables.iter())
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            ..Surroundings::default()
        }
    }

    #[test]
    fn proxies_of_the_environment_win() {
        let mut config = Config::default();
        config.proxy_config.https = Some("http://proxy.invalid:3128".parse().unwrap());
        assert_eq!(proxies(&config, &surroundings(&[])).unwrap().len(), 1);
        for variable in ["https_proxy", "HTTP_PROXY", "ALL_PROXY"] {
            let surroundings = surroundings(&[(variable, "http://other.invalid")]);
            assert!(proxies(&config, &surroundings).unwrap().is_empty());
        }
    }

    #[test]
    fn a_client_is_built_from_every_option() {
        let mut config = Config {
            offline: Some(true),
            tls_no_verify: Some(true),
            ..Config::default()
        };
        config.mirrors.insert(
            "https://a.invalid/channel".parse().unwrap(),
            vec!["https://b.invalid/channel".parse().unwrap()],
        );
        for tls_root_certs in [None, Some(TlsRootCerts::System), Some(TlsRootCerts::Webpki)] {
            config.tls_root_certs = tls_root_certs;
            http_client(&config, &surroundings(&[])).unwrap();
        }
    }

    #[tokio::test]
    async fn offline_means_that_nothing_is_asked() {
        let config = Config {
            offline: Some(true),
            ..Config::default()
        };
        let client = http_client(&config, &surroundings(&[])).unwrap();
        let stack = middleware(&config, HashMap::new(), &client);
        let client = ClientWithMiddleware::new(client, stack);
        let error = client
            .get("https://channel.invalid/a-1-0.conda")
            .send()
            .await
            .unwrap_err();
        let said = format!("{error:#}").to_lowercase();
        assert!(said.contains("offline"), "{said}");
    }
}
