/*
 * Search in pages that are opened from a folder. The search of the theme runs in a Worker, and browsers start no worker from
 * a file:// address. Here the worker's script runs in a hidden frame instead. Served pages keep the browser's own Worker.
 *
 * The theme looks for the name IFrameWorker to find out that its script runs in a frame.
 */
class FrameWorker extends EventTarget {
  constructor(url) {
    super()
    this.waiting = []
    this.frame = document.createElement('iframe')
    this.frame.hidden = true
    document.body.append(this.frame)
    const inside = this.frame.contentWindow
    // The script answers with postMessage(data): the page hears it as a message of this worker.
    inside.postMessage = (data) => this.emit(data)
    inside.importScripts = (...urls) => Promise.all(urls.map((address) => load(inside.document, address)))
    load(inside.document, url).then(() => this.start(inside))
  }

  emit(data) {
    const event = new MessageEvent('message', { data })
    this.dispatchEvent(event)
    this.onmessage?.(event)
  }

  /* Messages that were sent before the script was loaded are delivered in order. */
  start(inside) {
    const deliver = (data) => inside.dispatchEvent(new MessageEvent('message', { data }))
    this.waiting.splice(0).forEach(deliver)
    this.deliver = deliver
  }

  postMessage(data) {
    if (this.deliver) setTimeout(() => this.deliver(data))
    else this.waiting.push(data)
  }

  terminate() {
    this.frame.remove()
  }
}

function load(page, address) {
  return new Promise((resolve, reject) => {
    const script = page.createElement('script')
    Object.assign(script, { src: new URL(address, document.baseURI), onload: resolve, onerror: reject })
    page.body.append(script)
  })
}

if (location.protocol === 'file:') {
  window.IFrameWorker = FrameWorker
  window.Worker = FrameWorker
}
