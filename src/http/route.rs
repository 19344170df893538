//! Paths.

use matchit::Router;

/// What a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    Sales,
    Sale,
    CancelSale,
    Orders,
    Order,
    Cancel,
    Refund,
    Webhook,
    Livez,
    Readyz,
    Metrics,
}

impl Route {
    const ALL: [Self; 11] = [
        Self::Sales,
        Self::Sale,
        Self::CancelSale,
        Self::Orders,
        Self::Order,
        Self::Cancel,
        Self::Refund,
        Self::Webhook,
        Self::Livez,
        Self::Readyz,
        Self::Metrics,
    ];

    /// Its template, which is also its name on metrics.
    pub(super) const fn template(self) -> &'static str {
        match self {
            Self::Sales => "/v1/sales",
            Self::Sale => "/v1/sales/{id}",
            Self::CancelSale => "/v1/sales/{id}/cancel",
            Self::Orders => "/v1/sales/{id}/orders",
            Self::Order => "/v1/orders/{id}",
            Self::Cancel => "/v1/orders/{id}/cancel",
            Self::Refund => "/v1/orders/{id}/refund",
            Self::Webhook => "/v1/webhooks/{provider}",
            Self::Livez => "/livez",
            Self::Readyz => "/readyz",
            Self::Metrics => "/metrics",
        }
    }

    /// The methods it knows, as the `Allow` header has them.
    pub(super) const fn allow(self) -> &'static str {
        match self {
            Self::Sales | Self::CancelSale => "GET, HEAD, POST",
            Self::Orders | Self::Cancel | Self::Refund | Self::Webhook => "POST",
            Self::Sale | Self::Order | Self::Livez | Self::Readyz | Self::Metrics => "GET, HEAD",
        }
    }
}

/// All routes.
pub(super) struct Routes(Router<Route>);

impl Routes {
    pub(super) fn new() -> Self {
        let mut router = Router::new();
        for route in Route::ALL {
            // The templates are constants and a test inserts them all.
            router
                .insert(route.template(), route)
                .expect("templates don't overlap");
        }
        Self(router)
    }

    /// Where `path` leads, and the id or name in it (empty when the template has none).
    ///
    /// Paths are compared as they are: what we name never needs percent-encoding, so an encoded one is simply not found.
    pub(super) fn find<'p>(&self, path: &'p str) -> Option<(Route, &'p str)> {
        let found = self.0.at(path).ok()?;
        let named = found.params.iter().next().map_or("", |(_, value)| value);
        Some((*found.value, named))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_template_leads_to_its_route() {
        let routes = Routes::new();
        for route in Route::ALL {
            let path = route
                .template()
                .replace("{id}", "some-id")
                .replace("{provider}", "some-id");
            let id = if path == route.template() { "" } else { "some-id" };
            assert_eq!(routes.find(&path), Some((route, id)));
        }
    }

    #[test]
    fn odd_paths_lead_nowhere_or_to_an_id_that_is_none() {
        let routes = Routes::new();
        for odd in [
            "",
            "/",
            "*",
            "/v1/sales/",
            "//v1/sales",
            "/v1//sales",
            "/V1/sales",
            "/v1/sales/a/orders/",
            "/livez/",
        ] {
            assert_eq!(routes.find(odd), None, "{odd}");
        }
        assert_eq!(routes.find("/v1/sales/%2e%2e"), Some((Route::Sale, "%2e%2e")));
        assert_eq!(routes.find("/v1/sales/{id}"), Some((Route::Sale, "{id}")));
    }
}
