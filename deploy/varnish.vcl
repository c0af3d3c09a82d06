# Varnish in front of a server: takes the load of many clients off a Stratum 0 or Stratum 1.
#
# For: servers whose disk or line is slow. Clients use the address of Varnish as that of the server.
# Use: copy to /etc/varnish/default.vcl, change the server's address, start
#      varnishd -a :80 -f /etc/varnish/default.vcl -s malloc,8G
# Try: curl -I http://localhost/cvmfs/NAME/.cvmfspublished
vcl 4.1;

import std;

backend server {
    .host = "127.0.0.1";
    .port = "8000";
    .connect_timeout = 5s;
    .first_byte_timeout = 30s;
    .between_bytes_timeout = 30s;
}

sub vcl_recv {
    if (req.method != "GET" && req.method != "HEAD") {
        return (synth(405, "Method Not Allowed"));
    }
    # Streams of events have no end.
    if (req.url ~ "/\.esker/revisions$") {
        return (pipe);
    }
    # Pages about the server are made for each request.
    if (req.url !~ "^/+cvmfs/") {
        return (pass);
    }
    unset req.http.Cookie;
    unset req.http.Authorization;
    # A client that found a copy damaged asks for a new one.
    if (req.http.Cache-Control ~ "no-cache" || req.http.Pragma ~ "no-cache") {
        set req.hash_always_miss = true;
    }
    return (hash);
}

sub vcl_backend_response {
    unset beresp.http.Set-Cookie;
    # Old copies of heads are not served: a client would miss a revision.
    set beresp.grace = 0s;
    if (beresp.status == 200 || beresp.status == 206) {
        if (bereq.url ~ "/data/[0-9a-f][0-9a-f]/") {
            # Objects never change, because their name is the hash of their content.
            set beresp.ttl = 3d;
            set beresp.grace = 1h;
        } else if (bereq.url !~ "/\.esker/batch/" && (beresp.ttl > 61s || !beresp.http.Cache-Control)) {
            # Batches never change either; the server says so of complete ones.
            set beresp.ttl = 61s;
        }
    } else if (beresp.status == 404) {
        # A missing object may appear at any moment; many nodes may ask for it in one moment, too.
        set beresp.ttl = 5s;
        set beresp.uncacheable = false;
        return (deliver);
    }
    # Images are too large for the memory of the cache.
    if (std.integer(beresp.http.Content-Length, 0) > 268435456) {
        set beresp.uncacheable = true;
    }
}

sub vcl_deliver {
    if (obj.hits > 0) {
        set resp.http.X-Cache = "hit";
    } else {
        set resp.http.X-Cache = "miss";
    }
}
