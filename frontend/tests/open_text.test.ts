import { afterEach, beforeAll, beforeEach, expect, it, vi } from 'vitest'

import { ApiError, Client, Server, type Points, type Source } from '../src/api'
import { OpenTrace } from '../src/open_trace.svelte'
import { Studio } from '../src/studio.svelte'

beforeAll(() => { vi.stubGlobal('navigator', { language: 'en' }) })

class Stream {
  static all: Stream[] = []
  handlers: Record<string, (event: { data?: string }) => void> = {}
  isOpen = true
  constructor() { Stream.all.push(this) }
  addEventListener(name: string, handler: (event: { data?: string }) => void): void { this.handlers[name] = handler }
  close(): void { this.isOpen = false }
}
beforeEach(() => { Stream.all = []; vi.stubGlobal('EventSource', Stream); vi.useFakeTimers() })
afterEach(() => vi.useRealTimers())

const MODELS = ['one', 'two'].map((id) => ({ id, name: `Model ${id}`, ready: true, layers: 2, heads: 2 }))
const STATE = { version: '', models: MODELS, model: 'one', example: null, limits: {} }

/** A server that records requests. `pending` holds the responses to texts. */
class FakeServer implements Source {
  readonly isLive = true
  onLost = () => undefined as void
  sent: string[] = []
  signals: (AbortSignal | undefined)[] = []
  pending: { resolve: (value: unknown) => void; reject: (error: unknown) => void }[] = []
  async read(path: string, _query: Record<string, string>, _extension: string, signal?: AbortSignal): Promise<ArrayBuffer> {
    this.signals.push(signal)
    if (path.includes('/analyses/')) await new Promise((_, reject) => signal!.addEventListener('abort', () => reject(new Error('aborted'))))
    return new TextEncoder().encode(JSON.stringify(path === 'api/state' ? STATE : { models: MODELS, recent: [], sources: [], analyses: [], story: [], operations: [] })).buffer as ArrayBuffer
  }
  send(path: string, _body: unknown, method = 'POST', signal?: AbortSignal): Promise<any> {
    this.sent.push(`${method} ${path}`)
    if (method === 'DELETE') return Promise.resolve({ cancelled: true })
    return new Promise((resolve, reject) => {
      this.pending.push({ resolve, reject })
      signal?.addEventListener('abort', () => reject(Object.assign(new Error('aborted'), { name: 'AbortError' })))
    })
  }
}

async function openStudio(server: FakeServer): Promise<Studio> {
  const studio = new Studio(new Client(server), null, { read: () => '#text=first', write: () => undefined })
  await studio.start()
  const opening = studio.openTrace()
  await vi.advanceTimersByTimeAsync(0)
  server.pending.shift()!.resolve({ id: 'a', job: 'job-a' })
  await opening
  return studio
}

it('closing a text cancels its job and its analyses once', async () => {
  const server = new FakeServer()
  const client = new Client(server)
  const trace = new OpenTrace(client, 'a', 'job-a').listen()
  const analysis = client.analysis('a', 'energy')
  await trace.close()
  await expect(analysis).rejects.toThrow('aborted')
  await trace.close()
  expect(server.sent).toEqual(['DELETE api/jobs/job-a'])
  expect(Stream.all[0]!.isOpen).toBe(false)
})

it('a new text cancels the job of the old one before it is sent', async () => {
  const server = new FakeServer()
  const studio = await openStudio(server)
  studio.navigate({ text: 'second' })
  void studio.openTrace()
  await vi.advanceTimersByTimeAsync(0)
  expect(server.sent.slice(1)).toEqual(['DELETE api/jobs/job-a', 'POST api/traces'])
  studio.navigate({ text: 'third' })
  void studio.openTrace()
  await vi.advanceTimersByTimeAsync(0)
  expect(studio.error).toBe('') // the second request was aborted without an error
  expect(server.sent.length).toBe(4)
})

it('results of another model or text are marked as old, and a refusal returns to those that are shown', async () => {
  const server = new FakeServer()
  const studio = await openStudio(server)
  expect(studio.oldResults).toBe('')
  studio.navigate({ text: 'second' })
  expect(studio.oldResults).toContain('previous text')
  studio.navigate({ text: 'first', model: 'two' })
  expect(studio.oldResults).toContain('belong to Model one, and Model two is selected')
  const opening = studio.openTrace()
  await vi.advanceTimersByTimeAsync(0)
  server.pending.shift()!.reject(new ApiError('refused', 400))
  await opening
  expect([studio.refusal, studio.link.model, studio.oldResults]).toEqual(['refused', '', ''])
  const returning = studio.openTrace()
  await vi.advanceTimersByTimeAsync(0)
  server.pending.shift()!.resolve({ id: 'a', job: 'job-b' })
  await returning
  expect(studio.refusal).toBe('refused')
  studio.navigate({ text: 'third' })
  void studio.openTrace()
  expect(studio.refusal).toBe('')
})

it('an edit replaces the state before it when its points and predictions are there', async () => {
  const server = new FakeServer()
  const studio = await openStudio(server)
  const head = { next: null, tokens: [], edits: [] }
  Stream.all[0]!.handlers.head!({ data: JSON.stringify(head) })
  const unedited = studio.trace
  studio.toggleSilence(0, 1)
  expect(studio.oldResults).toContain('before this change of its edits')
  void studio.openComparison()
  expect(studio.traceBeforeEdits).toBe(unedited) // it is not requested again
  vi.spyOn(studio.client, 'points').mockResolvedValue({} as Points)
  void studio.openTrace()
  await vi.advanceTimersByTimeAsync(0)
  server.pending.shift()!.resolve({ id: 'b', job: 'job-b' })
  await vi.advanceTimersByTimeAsync(0)
  expect(studio.trace).toBe(unedited)
  Stream.all[1]!.handlers.head!({ data: JSON.stringify(head) })
  await vi.advanceTimersByTimeAsync(0)
  expect([studio.trace?.id, studio.oldResults]).toEqual(['b', ''])
  expect(studio.client.points).toHaveBeenCalledWith('b', 'text:a/prediction', 'sphere') // the axes stay those before the edit
})

it('undo restores the edits before the last change, also of a link', () => {
  const studio = new Studio(new Client(new FakeServer()), null, { read: () => '#edits=0.0.M.symmetric,1.0.M.skew', write: () => undefined })
  const heads = () => studio.link.edits.map(({ layer, head, operation }) => `${layer}.${head} ${operation}`)
  studio.toggleSilence(1, 1)
  studio.toggleSilence(1, 1)
  expect(studio.isSilenced(1, 1)).toBe(false)
  studio.undoEdit()
  expect(heads()).toEqual(['0.0 symmetric', '1.0 skew', '1.1 ablate'])
  studio.undoEdit()
  studio.undoEdit()
  expect(heads()).toEqual(['0.0 symmetric'])
  studio.undoEdit()
  studio.undoEdit()
  expect(heads()).toEqual([])
})

it('reconnects to a server that was restarted, and opens the text again', async () => {
  const server = new FakeServer()
  const studio = await openStudio(server)
  Stream.all[0]!.handlers.error!({}) // the stream ends without a final event
  expect(studio.isLost).toBe(true)
  await vi.advanceTimersByTimeAsync(1100)
  expect(studio.isLost).toBe(false)
  expect(server.sent.filter((request) => request === 'POST api/traces').length).toBe(2)
  void studio.reopen() // aborts the request, and sends it again
  await vi.advanceTimersByTimeAsync(0)
  server.pending.at(-1)!.resolve({ id: 'a', job: 'job-b' })
  await vi.advanceTimersByTimeAsync(0)
  expect([studio.trace?.job, studio.oldResults]).toEqual(['job-b', ''])
})

it('a text that is opened again stays on the screen until it has arrived', async () => {
  const server = new FakeServer()
  const studio = await openStudio(server)
  studio.client.points = vi.fn(async () => ({ share: 1 }) as Points)
  const head = { data: JSON.stringify({ next: null, tokens: [], edits: [] }) }
  Stream.all[0]!.handlers.head!(head)
  void studio.reopen()
  await vi.advanceTimersByTimeAsync(0)
  server.pending.at(-1)!.resolve({ id: 'a', job: 'job-b' })
  await vi.advanceTimersByTimeAsync(0)
  expect(studio.trace?.job).toBe('job-a')
  Stream.all[1]!.handlers.head!(head)
  await vi.advanceTimersByTimeAsync(0)
  expect([studio.trace?.job, studio.info !== null]).toEqual(['job-b', true])
})

it('a server that cannot be reached is reported as such', async () => {
  vi.stubGlobal('fetch', () => Promise.reject(new TypeError('Failed to fetch')))
  const server = new Server()
  server.onLost = vi.fn()
  await expect(server.read('api/state', {}, 'json')).rejects.toThrow('The server does not respond')
  expect(server.onLost).toHaveBeenCalledOnce()
})
