//! The parts that select a partition, a cost or a route are read in one way: a request that some upstream might read as another one is
//! refused, so no client has a partition beside the one that its upstream sees.

use crate::support::raw::{RawUpstream, exchange, read_to_end};
use crate::support::{Upstream, Weir, lane};

/// Returns a configuration with one permit an hour for each tenant, named by a query parameter, a header or a segment of the path.
fn by_tenant(url: &str) -> String {
    let limiter = |name: &str, key: &str| format!("  {name}: {{limits: [1/1h], key: [\"{key}\"]}}\n");
    let route = |name: &str, rest: &str| {
        format!("  - {{name: {name}, match: {{path: /{name}}}, upstream: \"{url}\", {rest}}}\n")
    };
    let limiters = [limiter("q", "query:tenant"), limiter("h", "header:x-tenant"), limiter("p", "path:1")];
    let cost = "limiter: c, cost: {header: x-cost, default: 1, max: 10}";
    let routes = [
        route("q", "limiter: q, strip_prefix: /q"),
        route("h", "limiter: h, set_headers: {x-tenant: everyone, x-key: secret}"),
        route("p", "limiter: p"),
        route("c", cost),
        format!(
            "  - {{name: m, match: {{path: /m, headers: {{x-plan: free}}}}, upstream: \"{url}\", limiter: h}}\n"
        ),
        route("m", "limiter: q").replace("name: m", "name: paid"),
    ];
    format!("limiters:\n{}  c: {{limits: [100/1h]}}\nroutes:\n{}", limiters.concat(), routes.concat())
}

pub(crate) async fn status(weir: &Weir, target: &str, headers: &[u8]) -> u16 {
    let head = [b"GET ", target.as_bytes(), b" HTTP/1.1\r\nHost: h\r\n", headers, b"\r\n"].concat();
    let mut head = head;
    let end = head.len() - 2;
    if !headers.to_ascii_lowercase().windows(11).any(|part| part == b"connection:") {
        head.splice(end..end, b"Connection: close\r\n".iter().copied());
    }
    let answer = exchange(&weir.host(), &head).await;
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default()
}

pub(crate) const QUERIES_OF_A_TENANT: &[&str] = &[
    "tenant=t",
    "tenant=%74",
    "ten%61nt=t",
    "%74%65%6e%61%6e%74=t",
    "a=1&tenant=t",
    "&&tenant=t",
    "tenant=t#x",
    "tenant=t&other=1",
    "tenant=@&tenant=t",
    "tenant=t&tenant=@",
    "tenant=t&tenant=t",
    "tenant&tenant=t",
    "tenant=&tenant=t",
    "tenant=@&ten%61nt=t",
    "tenant=@&TENANT=t",
    "Tenant=t",
    "TENANT=t&x=@",
    "tenant=@&tenant[]=t",
    "tenant[]=t",
    "tenant%5B%5D=t",
    "tenant[@]=t",
    "tenant[0]=t&x=@",
    "tenant=@&tenant%5Ba%5D=t",
    "tenant=@;tenant=t",
    "x=@;tenant=t",
    "tenant=t;x=@",
    "+tenant=t&x=@",
    "%20tenant=t&x=@",
    "tenant=@&%20tenant=t",
    "tenant%00=t&x=@",
    "tenant=@&tenant%00@=t",
    "tenant=%zz@",
    "tenant=@%",
    "tenant=@%4",
];

pub(crate) const HEADERS_OF_A_TENANT: &[&[u8]] = &[
    b"X-Tenant: t\r\n",
    b"x-tenant: t\r\n",
    b"X-TENANT:t\r\n",
    b"X-Tenant:  \tt \t\r\n",
    b"X-Tenant: @\r\nX-Tenant: t\r\n",
    b"X-Tenant: t\r\nX-Tenant: @\r\n",
    b"X-Tenant: t\r\nx-tenant: t\r\n",
    b"X-Tenant: @\r\nX_Tenant: t\r\n",
    b"X_Tenant: t\r\nX-Other: @\r\n",
    b"X_TENANT: t\r\nX-Tenant: @\r\n",
    b"X-Tenant: @\r\nTrailer: X-Tenant\r\n",
    b"X-Tenant: @\r\nTrailer: x-checksum, X-TENANT\r\n",
    b"X-Tenant: @\r\nTrailer: x-checksum\r\nTrailer: x-tenant\r\n",
    b"X-Tenant: @\r\nTrailer: \xff, x-tenant\r\n",
    b"X-Tenant: @\r\nTrailer: x_tenant\r\n",
    b"X-Tenant: @\r\nX_Tenant: t\r\nConnection: close, x-tenant\r\n",
    b"X_Tenant: t\r\nConnection: close, x-tenant\r\n",
];

/// Headers that end at weir, so that the upstream sees no tenant.
pub(crate) const HEADERS_OF_NO_TENANT: &[&[u8]] = &[
    b"Connection: close\r\n",
    b"X-Tenant: @\r\nConnection: close, x-tenant\r\n",
    b"X-Tenant: @\r\nConnection: X-Tenant\r\nConnection: close\r\n",
    b"X-Tenant: @\r\nConnection: \xff, X-TENANT\r\nConnection: close\r\n",
    b"X-Tenant: @\r\nConnection: close\r\nConnection: \xff\t,x-tenant\r\n",
    b"X-Tenant: @\r\nConnection: ,,close ,  X-Tenant ,\r\n",
    b"X-Tenant: @\r\nX_Tenant: t\r\nConnection: close, x-tenant, x_tenant\r\n",
];

const PATHS_OF_A_TENANT: &[&str] = &[
    "/p/t",
    "/p/t/@",
    "/p/%74",
    "/p/%2574",
    "/p/t;@",
    "/p/t%3b@",
    "/p/t%2f@",
    "/p/@/../t",
    "/p/@/%2e%2e/t",
    "/p/@/..%2ft",
    "/p//t/@",
    "/p/t/../@",
    "/p/t%2f..%2f@",
    "/p/./t/@",
    "/p%5ct/@",
    "/@/../p/t",
];

#[tokio::test]
async fn no_way_to_name_a_tenant_has_a_partition_of_its_own() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&by_tenant(&upstream.url())).await;
    for first in [("/q?tenant=t", &b""[..]), ("/h", b"X-Tenant: t\r\n"), ("/h", b""), ("/p/t", b"")] {
        assert_eq!(status(&weir, first.0, first.1).await, 200, "{first:?}");
    }
    let before = upstream.count();
    let mut numbers = 0..;
    // Each way has another number, which would be a new partition.
    let mut numbered = |bytes: &[u8]| {
        let number = format!("n{}", numbers.next().unwrap_or_default());
        bytes
            .iter()
            .flat_map(|byte| if *byte == b'@' { number.as_bytes().to_vec() } else { vec![*byte] })
            .collect()
    };
    let mut escaped = Vec::new();
    let targets = QUERIES_OF_A_TENANT.iter().map(|query| (format!("/q?{query}"), &b""[..]));
    let targets = targets.chain(PATHS_OF_A_TENANT.iter().map(|path| ((*path).to_owned(), &b""[..])));
    // The absolute form is the same target.
    let absolute = QUERIES_OF_A_TENANT.iter().map(|query| (format!("http://h/q?{query}"), &b""[..]));
    let headers = HEADERS_OF_A_TENANT.iter().chain(HEADERS_OF_NO_TENANT);
    let headers = headers.map(|headers| ("/h".to_owned(), *headers));
    for (target, headers) in targets.chain(absolute).chain(headers) {
        let target = String::from_utf8(numbered(target.as_bytes())).expect("text");
        let headers: Vec<u8> = numbered(headers);
        let status = status(&weir, &target, &headers).await;
        if !matches!(status, 400 | 429) {
            escaped.push((status, target, String::from_utf8_lossy(&headers).into_owned()));
        }
    }
    assert!(escaped.is_empty(), "{escaped:#?}");
    assert_eq!(upstream.count(), before);
    // Other tenants have their own.
    for other in [("/q?tenant=u&x=%zz;y", &b""[..]), ("/h", b"X-Tenant: u\r\nX-Other: 1\r\nX-Other: 2\r\n")] {
        assert_eq!(status(&weir, other.0, other.1).await, 200, "{other:?}");
    }
}

#[tokio::test]
async fn a_cost_and_a_match_are_read_in_one_way() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&by_tenant(&upstream.url())).await;
    for (target, headers, expected, left) in [
        ("/c", &b"X-Cost: 10\r\n"[..], 200, 90),
        ("/c", b"X-Cost: 10\r\nX-Cost: 1\r\n", 400, 90),
        ("/c", b"X-Cost: 10\r\nX_Cost: 1\r\n", 400, 90),
        ("/c", b"X-Cost: 10\r\nTrailer: x-cost\r\n", 400, 90),
        // The upstream sees no cost either.
        ("/c", b"X-Cost: 10\r\nConnection: \xff, x-cost\r\nConnection: close\r\n", 200, 89),
        ("/m", b"X-Plan: free\r\n", 200, 89),
        ("/m", b"X-Plan: free\r\n", 429, 89),
        ("/m", b"X-Plan: free\r\nX-Plan: paid\r\n", 400, 89),
        ("/m", b"X-Plan: paid\r\nX-Plan: free\r\n", 400, 89),
        ("/m", b"X-Plan: paid\r\nTrailer: x-plan\r\n", 400, 89),
        ("/m", b"X-Plan: free\r\nConnection: close, x-plan\r\n", 200, 89),
        // Where the match is not tried, its header means nothing.
        ("/h", b"X-Plan: free\r\nX-Plan: paid\r\nX-Tenant: u\r\n", 200, 89),
    ] {
        let shown = String::from_utf8_lossy(headers);
        assert_eq!(status(&weir, target, headers).await, expected, "{target} {shown}");
        assert_eq!(weir.available("c").await, [left], "{target} {shown}");
    }
}

#[tokio::test]
async fn an_undeclared_trailer_replaces_no_header_of_the_route() {
    let _lane = lane::shared().await;
    let upstream = RawUpstream::start(|mut connection, _| async move {
        connection.read_head().await;
        let mut body = Vec::new();
        while !body.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            match tokio::io::AsyncReadExt::read(&mut connection.stream, &mut byte).await {
                Ok(1) => body.push(byte[0]),
                _ => return,
            }
        }
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        connection.write(&[head.as_bytes(), &body].concat()).await;
    })
    .await;
    let weir = Weir::start(&by_tenant(&upstream.url())).await;
    let mut stream = tokio::net::TcpStream::connect(weir.host()).await.unwrap();
    let request = "POST /h HTTP/1.1\r\nHost: h\r\nConnection: close\r\nX-Tenant: u\r\nTrailer: x-checksum\r\n\
                   Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx-checksum: 5\r\nx-tenant: t\r\nX_Tenant: t\r\nx-key: t\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
    let sent = read_to_end(&mut stream).await.to_ascii_lowercase();
    assert!(
        sent.contains("x-checksum: 5") && !sent.contains("tenant: t") && !sent.contains("x-key: t"),
        "{sent}"
    );
}
