/*
 * The shim of iframe-worker (https://github.com/squidfunk/iframe-worker) as plain JavaScript. The search of a page that is
 * opened from a folder needs it, because browsers do not start workers from file:// addresses. A local copy keeps the
 * pages free of requests to other servers.
 *
 * Copyright (c) 2020-2022 Martin Donath <martin.donath@squidfunk.com>
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy
 * of this software and associated documentation files (the "Software"), to
 * deal in the Software without restriction, including without limitation the
 * rights to use, copy, modify, merge, publish, distribute, sublicense, and/or
 * sell copies of the Software, and to permit persons to whom the Software is
 * furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in
 * all copies or substantial portions of the Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 * IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
 * FITNESS FOR A PARTICULAR PURPOSE AND NON-INFRINGEMENT. IN NO EVENT SHALL THE
 * AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
 * LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING
 * FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS
 * IN THE SOFTWARE.
 */

(() => {
  const postMessage = "function(message,origin){parent.postMessage(message,origin||'*')}";
  const importScripts =
    "function(...urls){return urls.reduce((promise,url)=>promise.then(()=>new Promise(resolve=>{" +
    "const script=document.createElement('script');script.src=url;script.onload=resolve;" +
    "document.body.appendChild(script)})),Promise.resolve())}";

  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.url = url;
      this.iframe = document.createElement("iframe");
      this.iframe.hidden = true;
      document.body.appendChild(this.iframe);

      const frame = this.iframe.contentWindow;
      frame.document.open();
      frame.document.write(
        `<html><body><script>postMessage=${postMessage};importScripts=${importScripts};` +
          `addEventListener("error",({error})=>{parent.dispatchEvent(new ErrorEvent("error",{filename:"${url}",error}))})` +
          `</script><script src=${url}?${+Date.now()}></script></body></html>`,
      );
      frame.document.close();

      window.onmessage = (event) => this.receiveMessage(event);
      window.onerror = (...details) => this.receiveError(...details);
      this.ready = new Promise((resolve, reject) => {
        frame.onload = resolve;
        frame.onerror = reject;
      });
    }

    terminate() {
      this.iframe.remove();
      window.onmessage = window.onerror = null;
    }

    postMessage(data) {
      this.ready
        .catch(() => {})
        .then(() => this.iframe.contentWindow.dispatchEvent(new MessageEvent("message", structuredClone({ data }))));
    }

    receiveMessage(event) {
      if (event.source !== this.iframe.contentWindow) return;
      this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      if (this.onmessage) this.onmessage(event);
    }

    receiveError(message, filename, lineno, colno, error) {
      if (filename !== `${this.url}`) return;
      const event = new ErrorEvent("error", { message, filename, lineno, colno, error });
      this.dispatchEvent(event);
      if (this.onerror) this.onerror(event);
    }
  }

  window.IFrameWorker = IFrameWorker;
  if (location.protocol === "file:") window.Worker = IFrameWorker;
})();
