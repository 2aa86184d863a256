// The wire without a model: answers of mock/answers.py served as the studio serves them. node mock/server.mjs ANSWERS PORT
import { createServer } from 'node:http'
import { existsSync, readFileSync } from 'node:fs'
import { join, normalize } from 'node:path'

const [home, port = '8321', page = '../src/rheoscope/studio/static'] = process.argv.slice(2)
const types = { json: 'application/json', bin: 'application/octet-stream', html: 'text/html', js: 'text/javascript', css: 'text/css', svg: 'image/svg+xml' }
const read = (path) => JSON.parse(readFileSync(join(home, path)))
const pause = (ms) => new Promise((go) => setTimeout(go, ms))

async function events(reply) {
  reply.writeHead(200, { 'content-type': 'text/event-stream' })
  const say = (event, data) => reply.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`)
  say('head', read('api/traces/example.json'))
  for (const verdict of read('api/traces/example/verdicts.json').verdicts) {
    say('verdict', verdict)
    await pause(60)
  }
  say('done', {})
  reply.end()
}

createServer(async (request, reply) => {
  const url = new URL(request.url, 'http://localhost')
  const path = normalize(url.pathname).replace(/^\//, '') || 'index.html'
  const send = (data, type, code = 200) => { reply.writeHead(code, { 'content-type': types[type] }); reply.end(data) }
  if (request.method === 'POST' && path === 'api/traces') return send(JSON.stringify({ id: 'example', job: 'j', cached: false }), 'json')
  if (path.endsWith('/events')) return events(reply)
  const tail = path.endsWith('points') && url.searchParams.get('space') === 'raw' ? '.raw' : ''
  for (const type of ['json', 'bin']) {
    const file = join(home, `${path}${tail}.${type}`)
    if (path.startsWith('api/') && existsSync(file)) return send(readFileSync(file), type)
  }
  const file = join(page, path)
  if (existsSync(file)) return send(readFileSync(file), file.split('.').pop())
  send(JSON.stringify({ error: `the mock has no ${path}` }), 'json', 404)
}).listen(Number(port), '127.0.0.1')
