"""A report whose every text is an attack, in Chromium; prints what happened as JSON.

python hostile_page.py CHROMIUM FILE
"""

import json
import sys
from pathlib import Path
from typing import Any

# What a page could do if a text got in as HTML; the policy must stop each of them, and say so.
TRIES = """async (home) => {
    const stopped = [];
    document.addEventListener("securitypolicyviolation", (event) => stopped.push(event.effectiveDirective));
    const add = (name, values) => document.body.append(Object.assign(document.createElement(name), values));
    add("script", { textContent: "window.pwned = 'inline'" });
    add("script", { src: home + "/a.js" });
    add("div", { innerHTML: "<img src=x onerror=\\"window.pwned = 'handler'\\">" });
    add("img", { src: home + "/a.png" });
    add("iframe", { src: home });
    add("base", { href: home });
    add("object", { data: home });
    setTimeout(() => eval("window.pwned = 'eval'"));  // later: what a debugger calls may do it
    try { new WebSocket("ws://127.0.0.1:9"); } catch {}
    try { new Worker("data:text/javascript,1"); } catch {}
    await fetch(home).catch(() => {});
    const form = Object.assign(document.createElement("form"), { action: home });
    document.body.append(form);
    form.submit();
    // Ten kinds are to be stopped; a busy browser says so late.
    for (let waits = 0; waits < 1 || (waits < 50 && new Set(stopped).size < 10); waits++)
        await new Promise((done) => setTimeout(done, 300));
    return stopped.sort();
}"""


def main(chromium: str, path: str) -> None:
    from playwright.sync_api import sync_playwright

    requests, found = list[str](), dict[str, Any]()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.set_default_timeout(15_000)
        page.goto(Path(path).as_uri())
        page.get_by_role("button", name="Completions").first.click()
        page.locator("table.rows tbody tr").first.click()
        page.locator(".completion").first.wait_for()
        for key in "1234":
            page.keyboard.press(key)
            page.wait_for_timeout(200)
        found["pwned"] = page.evaluate("window.pwned ?? null")
        found["elements"] = page.evaluate("document.querySelectorAll('img, iframe, object, svg[onload], base').length")
        found["outside"] = [url for url in requests if not url.startswith("file:")]
        found["stopped"] = page.evaluate(TRIES, "http://127.0.0.1:9")
        found["pwned after"] = page.evaluate("window.pwned ?? null")
        found["address"] = page.url
        browser.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
