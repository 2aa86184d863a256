import { describe, expect, it } from 'vitest'

import { Client, exportFile, float16ToNumber, decompress, decodeEnvelope, Queue, ApiError, type Source } from '../src/api'
import { envelope } from './envelope'

describe('the envelope', () => {
  it('decodes every type of array', () => {
    const { header, arrays } = decodeEnvelope(envelope({ share: 0.5, name: 'ü' }, [
      { name: 'a', dtype: 'float32', shape: [2], data: Float32Array.of(1.5, NaN) },
      { name: 'b', dtype: 'int32', shape: [3], data: Int32Array.of(-1, 0, 7) },
      { name: 'c', dtype: 'uint8', shape: [3], scale: 0.5, zero: -1, missing: true, data: Uint8Array.of(0, 4, 255) },
      { name: 'd', dtype: 'float16', shape: [3], data: Uint16Array.of(0x3c00, 0xc000, 0x7e00) },
    ]))
    expect(header.share).toBe(0.5)
    expect(header.name).toBe('ü')
    expect([...arrays.a!.values]).toEqual([1.5, NaN])
    expect([...arrays.b!.values]).toEqual([-1, 0, 7])
    expect([...arrays.c!.values]).toEqual([-1, 1, NaN])
    expect([...arrays.d!.values]).toEqual([1, -2, NaN])
  })
  it('rejects other data', () => expect(() => decodeEnvelope(new ArrayBuffer(16))).toThrow(ApiError))
})

describe('float16', () => {
  it('decodes extreme and special values', () => {
    expect(float16ToNumber(0x0001)).toBe(2 ** -24)
    expect(float16ToNumber(0x7bff)).toBe(65504)
    expect(float16ToNumber(0xfc00)).toBe(-Infinity)
    expect(float16ToNumber(0x3555)).toBeCloseTo(1 / 3, 3)
    expect(Object.is(float16ToNumber(0x8000), -0)).toBe(true)
  })
})

describe('an export', () => {
  it('names files by path, without default values', () => {
    expect(exportFile('api/traces/x/points', { axes: 'all', space: 'sphere' }, 'bin')).toBe('api/traces/x/points.bin')
    expect(exportFile('api/traces/x/points', { axes: 'all', space: 'raw' }, 'bin')).toBe('api/traces/x/points.raw.bin')
    expect(exportFile('api/traces/x/weights/0/1', { kind: 'reversed' }, 'bin')).toBe('api/traces/x/weights/0/1.reversed.bin')
  })
  it('decompresses gzip and leaves other data alone', async () => {
    const text = new TextEncoder().encode('RHEO and more')
    const compressed = await new Response(new Blob([text]).stream().pipeThrough(new CompressionStream('gzip'))).arrayBuffer()
    expect(new Uint8Array(await decompress(compressed))).toEqual(text)
    expect(new Uint8Array(await decompress(text.slice().buffer))).toEqual(text)
  })
})

it('a queue limits concurrent jobs, keeps their order and survives a failure', async () => {
  const queue = new Queue(2)
  const finish: (() => void)[] = []
  const started: number[] = []
  const runJob = (index: number) => queue.run(() => new Promise<number>((resolve, reject) => (started.push(index), finish.push(() => (index === 0 ? reject(new Error('no')) : resolve(index))))))
  const all = Promise.allSettled([0, 1, 2, 3].map(runJob))
  await Promise.resolve()
  expect(started).toEqual([0, 1])
  finish[0]!()
  await new Promise((resolve) => setTimeout(resolve))
  expect(started).toEqual([0, 1, 2])
  finish[1]!()
  finish[2]!()
  await new Promise((resolve) => setTimeout(resolve))
  finish[3]!()
  expect((await all).map((outcome) => outcome.status)).toEqual(['rejected', 'fulfilled', 'fulfilled', 'fulfilled'])
})

describe('the client', () => {
  const source = (respond: (path: string) => ArrayBuffer): Source & { requests: string[] } => {
    const requests: string[] = []
    return { isLive: true, requests, read: async (path) => (requests.push(path), respond(path)), send: async () => ({}) }
  }
  it('requests an analysis once, and again only after a failure', async () => {
    let reject = true
    const from = source(() => {
      if (reject) throw new ApiError('not yet')
      return envelope({ pictures: [{ title: 't', caption: '', panels: [{ marks: [{ mark: 'lines' }] }] }] }, [])
    })
    const client = new Client(from)
    await expect(client.analysis('x', 'energy')).rejects.toThrow('not yet')
    reject = false
    const result = await client.analysis('x', 'energy')
    expect(await client.analysis('x', 'energy')).toBe(result)
    expect(from.requests.length).toBe(2)
    expect(result.pictures[0]!.panels[0]!.marks[0]!.mark).toBe('line')
  })
  it('reports why an analysis has no result', async () => {
    const client = new Client(source(() => envelope({ name: 'clusters', reason: 'too short' }, [])))
    await expect(client.analysis('x', 'clusters')).rejects.toThrow('too short')
  })
  it('requests a matrix of a head once for all panels, and again after a failure or many other heads', async () => {
    let reject = true
    const from = source(() => {
      if (reject) throw new ApiError('not yet')
      return envelope({}, [{ name: 'map', dtype: 'float32', shape: [1, 1], data: Float32Array.of(1) }])
    })
    const client = new Client(from)
    await expect(client.weights('x', 0, 0, 'weights')).rejects.toThrow('not yet')
    reject = false
    const maps = await Promise.all([client.weights('x', 0, 0, 'weights'), client.weights('x', 0, 0, 'weights')])
    expect(maps[0]).toBe(maps[1])
    expect(from.requests.length).toBe(2)
    await client.weights('x', 0, 0, 'reversed')
    expect(from.requests.length).toBe(3)
    for (let head = 1; head < 30; head++) await client.weights('x', 0, head, 'weights')
    await client.weights('x', 0, 29, 'weights')
    expect(from.requests.length).toBe(32)
    expect(await client.weights('x', 0, 0, 'weights')).not.toBe(maps[0])
  })
  it('has no star if its position is unknown', async () => {
    const points = { name: 'points', dtype: 'float32', shape: [1, 1, 3], data: Float32Array.of(1, 2, 3) }
    const star = { name: 'star', dtype: 'float32', shape: [3], data: Float32Array.of(NaN, NaN, NaN) }
    const response = await new Client(source(() => envelope({ share: 1, shares: [1, 0, 0] }, [points, star]))).points('x', 'all', 'raw')
    expect(response.star).toBeNull()
    expect([...response.points]).toEqual([1, 2, 3])
  })
})
